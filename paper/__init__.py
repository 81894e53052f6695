"""The paper as a distribution of its own: `dgnet_paper`, its tests and its results."""
