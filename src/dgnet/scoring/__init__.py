"""Errors of models on trajectories: the metrics, and the one function that rolls out and scores."""

from dgnet.scoring.judge import judge_file, predict, rivals
from dgnet.scoring.metrics import Sums, rne

__all__ = ["Sums", "judge_file", "predict", "rivals", "rne"]
