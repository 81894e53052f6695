"""One file for each part that DGNet can learn."""
