"""Trajectories and their HDF5 store."""

from dgnet.data.corpus import Corpus
from dgnet.data.digests import save_tensors
from dgnet.data.store import FORMAT, VERSION, Dataset, Header, assemble, write_dataset, write_part
from dgnet.data.trajectory import SPLITS, Trajectory

__all__ = ["FORMAT", "SPLITS", "VERSION", "Corpus", "Dataset", "Header", "Trajectory", "assemble",
           "save_tensors", "write_dataset", "write_part"]
