"""The paper's own DGNet: its scheme, its networks, its variants. Registered as the model `dgnet-paper`."""

from dgnet.models.dgnet import DGNet
from dgnet.models.registry import TOLD_ALL, Entry
from dgnet_paper.model.bounded import EdgeDecoder, EndToEnd, Residual
from dgnet_paper.model.config import BOUNDED, PAPER, PaperConfig, variants
from dgnet_paper.model.paper import ControlVolumes, Decoder, PlainResidual

__all__ = ["BOUNDED", "ENTRIES", "PAPER", "ControlVolumes", "Decoder", "EdgeDecoder", "EndToEnd", "PaperConfig", "PlainResidual",
           "Residual", "variants"]

ENTRIES = {"dgnet-paper": Entry("DGNet, the paper's", PaperConfig, DGNet, {"comparable": PAPER, "published": PAPER}, {},
                                told=TOLD_ALL)}
