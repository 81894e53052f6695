"""The eight baselines of the paper's tables, written from their papers, behind one adapter, and two reduced-order models."""

from dgnet.models.baselines.adapter import Baseline, Prepared
from dgnet.models.baselines.amg import AMG, AMGConfig
from dgnet.models.baselines.beno import BENO, BENOConfig
from dgnet.models.baselines.deeponet import DeepONet, DeepONetConfig
from dgnet.models.baselines.mgn import MGN, MGNConfig
from dgnet.models.baselines.mp_pde import MPPDE, MPPDEConfig
from dgnet.models.baselines.opinf import OpInf, OpInfConfig
from dgnet.models.baselines.phympgn import PhyMPGN, PhyMPGNConfig
from dgnet.models.baselines.pod import POD, PODConfig
from dgnet.models.baselines.singer import Singer, SingerConfig
from dgnet.models.baselines.transolver import Transolver, TransolverConfig

__all__ = ["AMG", "BENO", "MGN", "MPPDE", "POD", "AMGConfig", "BENOConfig", "Baseline", "DeepONet", "DeepONetConfig", "MGNConfig",
           "MPPDEConfig", "OpInf", "OpInfConfig", "PODConfig", "PhyMPGN", "PhyMPGNConfig", "Prepared",
           "Singer", "SingerConfig", "Transolver", "TransolverConfig"]
