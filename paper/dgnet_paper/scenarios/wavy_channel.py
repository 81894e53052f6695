"""Contaminant behind a cylinder between sinusoidal walls, Re 300."""

from dgnet_paper.scenarios.channel import Injection, channel
from dgnet_paper.scenarios.scenario import Figure, Scenario, Truth

PAPER = {"DGNet": Figure(6.29e-4, 0.0385), "DeepONet": Figure(2.38e-1, 0.8539), "MGN": Figure(3.59e-3, 0.3591),
         "MP-PDE": Figure(7.94e-3, 0.4729), "BENO": Figure(2.30e-2, 0.6292), "PhyMPGN": Figure(7.95e-2, 1.1838)}
SPOTS = Injection(8, (1.8, 12.0), (1.6, 6.4), (0.9, 1.3), (5.0, 12.0), (0.2, 0.5))


def scenario(size: str) -> Scenario:
    return channel("wavy-channel", "Contaminant in a wavy channel", size,
                   "Channel of length 24 and height 8 between walls that swing together as 0.6 sin(2πx/6), "
                   "cylinder of radius 1 at (6,4).", 300, 0.05 / 12, SPOTS, PAPER, Truth(refine=2, substeps=12, order=3))
