"""One set of corrections for every mesh: learned once, used without data (`Universal`)."""

from dgnet.models.universal.elements import ElementNet
from dgnet.models.universal.gathering import Gathering
from dgnet.models.universal.model import PreparedUniversal, Universal, load_weights
from dgnet.models.universal.network import UniversalNet
from dgnet.models.universal.tuned import AsShipped, Tuned, TunedConfig

__all__ = ["AsShipped", "ElementNet", "Gathering", "PreparedUniversal", "Tuned", "TunedConfig", "Universal", "UniversalNet",
           "load_weights"]
