"""dgnet: discrete Green networks for time-dependent PDEs on unstructured meshes."""

__version__ = "0.1.0"
