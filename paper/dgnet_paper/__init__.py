"""The paper's experiments on top of dgnet: scenarios, an independent truth, baselines, tables and figures, shipped weights."""

from dgnet import __version__

__all__ = ["__version__"]
