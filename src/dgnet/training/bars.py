"""Error bars of a run's calibrated coefficients, kept with the run."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict

from dgnet.data import Dataset
from dgnet.discovery.calibrate import Bar, uncertainty
from dgnet.errors import InputError, SolveError
from dgnet.files import read_json, write_json
from dgnet.models.dgnet import DGNet
from dgnet.problems.case import base_problem
from dgnet.training.run import Run


def error_bars(run: Run, keep: bool = True) -> dict[str, Bar]:
    """RUN/coefficients.json; where it is missing or of other weights, measured from the run's training data and kept.

    Empty where nothing was calibrated, where the data are gone, or where a rollout breaks down.
    """
    if not isinstance(run.model, DGNet) or not run.model.config.calibrate:
        return {}
    path, weights = run.folder / "coefficients.json", run.folder / "weights.pt"
    key = hashlib.sha256(weights.read_bytes()).hexdigest() if weights.is_file() else ""
    try:
        kept = read_json(path, {"weights": str, "bars": dict})
        if key and kept["weights"] == key:
            return {name: Bar(**{k: math.nan if v is None else float(v) for k, v in bar.items()})
                    for name, bar in kept["bars"].items()}
    except (InputError, TypeError, ValueError, AttributeError):
        pass  # made again
    if not run.data.is_file():
        return {}
    device = str(next(run.model.parameters()).device)
    with Dataset(run.data) as data:
        corpus = data.batch(data.of("train")[: run.settings.trajectories or None], device=device)
    try:
        found = uncertainty(run.model, base_problem(run.case, device), corpus)
    except SolveError:  # a rollout on the way broke down: no bar, and no reason to lose the run
        return {}
    if keep and key:
        write_json(path, {"weights": key, "bars": {name: asdict(bar) for name, bar in found.items()}})
    return found
