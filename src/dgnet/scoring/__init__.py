"""Errors of models on trajectories: the metrics, and the one function that rolls out and scores."""

from dgnet.scoring.judge import judge_file, predict, rivals

__all__ = ["judge_file", "predict", "rivals"]
