"""The independent truth: other elements, other assembly, other time stepping than the library; shares none of its operators."""

from dgnet_paper.reference.transport import solve

__all__ = ["solve"]
