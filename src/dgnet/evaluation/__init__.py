"""Scores of models on trajectories, how far to trust them, and what an operator has learned."""
