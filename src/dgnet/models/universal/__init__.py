"""One set of corrections for every mesh: learned once, used without data (`Universal`)."""

from dgnet.models.universal.model import Universal
from dgnet.models.universal.network import UniversalNet

__all__ = ["Universal", "UniversalNet"]
