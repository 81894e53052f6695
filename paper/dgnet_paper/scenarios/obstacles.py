"""Contaminant among ellipses and airfoil-shaped walls, Re 240."""

from dgnet_paper.scenarios.channel import Injection, channel
from dgnet_paper.scenarios.scenario import Figure, Scenario, Truth

PAPER = {"DGNet": Figure(6.69e-5, 0.0211), "DeepONet": Figure(5.33e-2, 0.5061), "MGN": Figure(7.79e-3, 0.6120),
         "MP-PDE": Figure(6.09e-3, 0.5410), "BENO": Figure(7.66e-2, 0.6069), "PhyMPGN": Figure(2.97e-1, 1.1956),
         "SINGER": Figure(9.41e-3, 0.7746), "AMG": Figure(1.40e-3, 0.3058), "Transolver": Figure(8.94e-4, 0.1855)}
SPOTS = Injection(8, (1.8, 12.0), (1.6, 6.8), (0.9, 1.3), (5.0, 12.0), (0.2, 0.5))


def scenario(size: str) -> Scenario:
    return channel("obstacles", "Contaminant among complex obstacles", size,
                   "Channel [0,24]×[0,8] with two tilted ellipses; each wall has an airfoil-shaped bump and a groove.",
                   240, 0.05 / 12, SPOTS, PAPER, Truth(refine=2, substeps=12, order=3))
