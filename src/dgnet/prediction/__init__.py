"""Rollouts of runs and of problems that nobody trained, written to files as they go."""
