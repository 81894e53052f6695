"""Contaminant behind a cylinder, Re 240."""

from dgnet_paper.scenarios.channel import Injection, channel
from dgnet_paper.scenarios.scenario import Figure, Scenario, Truth

PAPER = {"DGNet": Figure(1.00e-4, 0.0196), "DeepONet": Figure(4.44e-2, 0.5976), "MGN": Figure(6.38e-3, 0.7154),
         "MP-PDE": Figure(9.31e-2, 0.8644), "BENO": Figure(6.76e-2, 0.7364), "PhyMPGN": Figure(4.13e-1, 1.8201)}
SPOTS = Injection(8, (1.8, 12.0), (1.2, 6.8), (0.9, 1.3), (5.0, 12.0), (0.2, 0.5))


def scenario(size: str) -> Scenario:
    return channel("cylinder", "Contaminant behind a cylinder", size,
                   "Channel [0,24]×[0,8], cylinder of radius 1 at (6,4).", 240, 0.01, SPOTS, PAPER,
                   Truth(refine=2, substeps=8, order=3))
