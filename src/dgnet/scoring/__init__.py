"""Errors of models on trajectories: the metrics, and the judge, the only one that rolls out and scores."""
