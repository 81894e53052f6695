"""Small dense quadratic programs by a primal-dual interior point method (Mehrotra's predictor and corrector)."""

from __future__ import annotations

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from dgnet.errors import InputError

_STEPS, _SETTLED = 60, 1e-12
_BROKEN = 1e-6  # of the sizes involved: how far beyond a limit an answer is none


def minimise(P: np.ndarray, q: np.ndarray, G: np.ndarray, h: np.ndarray) -> np.ndarray:
    """x [n] that minimises x'Px/2 + q'x where Gx <= h.

    P [n, n] is symmetric and positive semidefinite. Rows of G [m, n] are scaled to length 1 first, so h is a distance. The answer
    keeps Gx <= h to about 1e-9 of the sizes involved; limits that leave no x are an `InputError`.
    """
    size = np.linalg.norm(G, axis=1).clip(1e-300)
    G, h = G / size[:, None], h / size
    scale = max(float(np.abs(q).max()), float(np.abs(P).max()), 1e-300)
    P, q = P / scale + 1e-13 * np.eye(len(q)), q / scale
    x, s, z = np.zeros(len(q)), np.maximum(h, 1.0), np.ones(len(h))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for _ in range(_STEPS):
            dual, primal, gap = P @ x + q + G.T @ z, G @ x + s - h, float(s @ z) / len(h)
            worst = max(float(np.abs(dual).max()), float(np.abs(primal).max()) / (1 + float(np.abs(h).max())), gap)
            if worst < _SETTLED:
                break
            H = P + (G.T * (z / s)) @ G
            try:
                factor = cho_factor(H + 1e-13 * np.diag(np.diagonal(H)))
                _, ds, dz = _change(G, s, z, dual, primal, factor, -s * z)
                far = min(_reach(s, ds), _reach(z, dz))
                after = float((s + far * ds) @ (z + far * dz)) / len(h)
                dx, ds, dz = _change(G, s, z, dual, primal, factor, -s * z - ds * dz + gap * (after / gap) ** 3)
            except (np.linalg.LinAlgError, ValueError):  # as near to the end as rounding allows; or multipliers beyond numbers
                break
            far = 0.99 * min(_reach(s, ds), _reach(z, dz))
            x, s, z = x + far * dx, s + far * ds, z + far * dz
    if float((G @ x - h).max()) > _BROKEN * (1 + float(np.abs(h).max())):
        raise InputError("no values keep all limits at once")
    return x


def _change(G: np.ndarray, s: np.ndarray, z: np.ndarray, dual: np.ndarray, primal: np.ndarray, factor: tuple[np.ndarray, bool],
            centre: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Newton's step of x, slacks s and multipliers z towards s z = what `centre` says."""
    dx = cho_solve(factor, -dual - G.T @ ((centre + z * primal) / s))
    ds = -primal - G @ dx
    return dx, ds, (centre - z * ds) / s


def _reach(value: np.ndarray, change: np.ndarray) -> float:
    """How far along a change all values stay positive, at most 1."""
    falls = change < 0
    return min(1.0, float((-value[falls] / change[falls]).min())) if falls.any() else 1.0
