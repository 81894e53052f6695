"""How far to trust a result: bands on predictions, the range of the training, distances between problems, leaving one out."""

from dgnet.trust.bands import Bands, Bends, Promise, Tested, bands_of, calibrate, sentences, stored_bands
from dgnet.trust.distance import Profile
from dgnet.trust.folds import leave_one_out, read_trust
from dgnet.trust.ranges import Guard, TrainingRange, range_findings, sentence, training_range

__all__ = ["Bands", "Bends", "Guard", "Profile", "Promise", "Tested", "TrainingRange", "bands_of", "calibrate",
           "leave_one_out", "range_findings", "read_trust", "sentence", "sentences", "stored_bands", "training_range"]
