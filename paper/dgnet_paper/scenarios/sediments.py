"""Contaminant over three wall deposits, Re 240."""

from dgnet_paper.scenarios.channel import Injection, channel
from dgnet_paper.scenarios.scenario import Figure, Scenario, Truth

PAPER = {"DGNet": Figure(4.60e-4, 0.0282), "DeepONet": Figure(3.61e-2, 0.4759), "MGN": Figure(5.94e-3, 0.6103),
         "MP-PDE": Figure(7.10e-3, 0.6673), "BENO": Figure(1.07e-1, 0.8180), "PhyMPGN": Figure(2.00e-1, 1.1186)}
SPOTS = Injection(8, (1.8, 12.0), (2.4, 5.6), (0.9, 1.3), (5.0, 12.0), (0.2, 0.5))


def scenario(size: str) -> Scenario:
    return channel("sediments", "Contaminant over sediments", size,
                   "Channel [0,24]×[0,8] with three smooth, lopsided deposits: two on the bed, one on the roof.",
                   240, 0.005, SPOTS, PAPER, Truth(refine=2, substeps=10, order=3))
