"""Diffusion along and across fibres: D = across I + (along - across) a a^T with the unit direction a of each cell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dgnet.errors import InputError


def fibre_tensors(directions: np.ndarray | Sequence[Sequence[float]], along: float | np.ndarray,
                  across: float | np.ndarray) -> np.ndarray:
    """One symmetric tensor per cell [K, d, d] for `PDE(diffusion=...)`.

    - `directions`: of the fibres in the cells [K, d], or one for all [d]; their length does not matter, nor does their sign
    - `along`, `across`: diffusivity or conductivity in the direction of the fibres and at right angles to it, a number or one per
      cell [K]; not negative

        >>> from dgnet.problems import fibre_tensors
        >>> fibre_tensors([[1.0, 1.0]], along=3.0, across=1.0).tolist()
        [[[2.0, 1.0], [1.0, 2.0]]]
    """
    a = np.atleast_2d(np.asarray(directions, dtype=float))
    if a.ndim != 2 or a.shape[1] not in (2, 3):
        raise InputError(f"directions of fibres must be [cells, 2] or [cells, 3], got {list(np.shape(directions))}")
    length = np.linalg.norm(a, axis=1)
    bad = np.flatnonzero(~(np.isfinite(length) & (length > 0)))
    if len(bad):
        raise InputError(f"the direction of the fibres in cell {bad[0]} must be finite and not zero, got {a[bad[0]].tolist()}")
    for name, value in (("along", along), ("across", across)):
        low = np.min(value)
        if not (np.isfinite(value).all() and low >= 0):
            raise InputError(f"the diffusion {name} fibres must be finite and not negative, got {low:g}")
    a = a / length[:, None]
    p, q = (np.asarray(v, dtype=float)[..., None, None] for v in (along, across))
    return q * np.eye(a.shape[1]) + (p - q) * (a[:, :, None] * a[:, None, :])
