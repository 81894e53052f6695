"""Trajectories, their HDF5 store, the split for validation and scaling."""

from dgnet.data.corpus import Corpus
from dgnet.data.digests import save_tensors
from dgnet.data.scaling import Scaling, scaling_of, state_scaling
from dgnet.data.split import hold_out
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

__all__ = ["CHUNK", "FORMAT", "LIBVER", "SPLITS", "VERSION", "Corpus", "Dataset", "Header", "Scaling", "Trajectory", "assemble",
           "hold_out", "put_array", "save_tensors", "scaling_of", "state_scaling", "write_dataset", "write_header", "write_part"]
