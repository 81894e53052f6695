"""One set of corrections for every mesh: learned once, used without data (`Universal`)."""

from dgnet.models.universal.gathering import Gathering
from dgnet.models.universal.model import Universal
from dgnet.models.universal.network import UniversalNet
from dgnet.models.universal.tuned import AsShipped, Tuned

__all__ = ["AsShipped", "Gathering", "Tuned", "Universal", "UniversalNet"]
