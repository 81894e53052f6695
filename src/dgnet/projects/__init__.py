"""Users' own problems: a folder with problem.toml, a mesh, data, and optionally physics.py; or the same made in Python."""

from dgnet.projects.named_files import IMPORTED
from dgnet.projects.project import TRUTH, Project, carried, carry, described, load, project, trajectory
from dgnet.projects.stored_case import CASE, read_case, write_case
from dgnet.projects.table import Table
from dgnet.projects.toml import FILE, Training

__all__ = ["CASE", "FILE", "IMPORTED", "TRUTH", "Project", "Table", "Training", "carried", "carry", "described", "load", "project",
           "read_case", "trajectory", "write_case"]
