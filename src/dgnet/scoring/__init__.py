"""Errors of models on trajectories: the metrics, and the one function that rolls out and scores."""
