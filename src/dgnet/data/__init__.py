"""Trajectories, their HDF5 store, windows and scaling."""

from dgnet.data.corpus import Corpus
from dgnet.data.scaling import Scaling, scaling_of, source_scaling, state_scaling
from dgnet.data.store import FORMAT, VERSION, Dataset, Header, assemble, write_dataset, write_part
from dgnet.data.trajectory import SPLITS, Batch, Trajectory, collate
from dgnet.data.windows import Windows, hold_out

__all__ = ["FORMAT", "SPLITS", "VERSION", "Batch", "Corpus", "Dataset", "Header", "Scaling", "Trajectory", "Windows", "assemble",
           "collate", "hold_out", "scaling_of", "source_scaling", "state_scaling", "write_dataset", "write_part"]
