"""Trajectories and their HDF5 store."""

from dgnet.data.corpus import Corpus
from dgnet.data.digests import save_tensors
from dgnet.data.store import (
           CHUNK,
           FORMAT,
           LIBVER,
           VERSION,
           Dataset,
           Header,
           assemble,
           put_array,
           write_dataset,
           write_header,
           write_part,
)
from dgnet.data.trajectory import SPLITS, Trajectory

__all__ = ["CHUNK", "FORMAT", "LIBVER", "SPLITS", "VERSION", "Corpus", "Dataset", "Header", "Trajectory", "assemble", "put_array",
           "save_tensors", "write_dataset", "write_header", "write_part"]
