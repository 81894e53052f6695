"""The eight baselines of the paper's tables, written from their papers, behind one adapter, and two reduced-order models."""

from dgnet_paper.baselines.adapter import Baseline, Prepared
from dgnet_paper.baselines.amg import AMG, AMGConfig
from dgnet_paper.baselines.beno import BENO, BENOConfig
from dgnet_paper.baselines.deeponet import DeepONet, DeepONetConfig
from dgnet_paper.baselines.mgn import MGN, MGNConfig
from dgnet_paper.baselines.mp_pde import MPPDE, MPPDEConfig
from dgnet_paper.baselines.opinf import OpInf, OpInfConfig
from dgnet_paper.baselines.phympgn import PhyMPGN, PhyMPGNConfig
from dgnet_paper.baselines.pod import POD, PODConfig
from dgnet_paper.baselines.singer import Singer, SingerConfig
from dgnet_paper.baselines.transolver import Transolver, TransolverConfig

__all__ = ["AMG", "BENO", "MGN", "MPPDE", "POD", "AMGConfig", "BENOConfig", "Baseline", "DeepONet", "DeepONetConfig", "MGNConfig",
           "MPPDEConfig", "OpInf", "OpInfConfig", "PODConfig", "PhyMPGN", "PhyMPGNConfig", "Prepared",
           "Singer", "SingerConfig", "Transolver", "TransolverConfig"]
