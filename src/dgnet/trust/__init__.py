"""How far to trust a result: bands on predictions, the range of the training, distances between problems."""
