"""Pictures of what a DGNet has learned: spectra, matrices, learned numbers on the mesh, truncation errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib import pyplot as plt
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm, Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d.art3d import Line3DCollection
from scipy.sparse import csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee

from dgnet.models.dgnet import DGNet
from dgnet.problems import Problem
from dgnet.report import pictures
from dgnet_paper.analyse.operator import BLUE, ORANGE, RED, Consistency, FieldStudy, Study, study

Tensor = torch.Tensor



def analyse(model: DGNet, problem: Problem, truth_states: Tensor | None = None, source: Tensor | None = None, *,
            t: float = 0.0, steps: int = 40, dense: int | None = None, folder: Path | None = None) -> dict[str, Any]:
    """Plain numbers about a DGNet on a problem; pictures as well where a `folder` is given. See `study`."""
    found = study(model, problem, truth_states, source, t=t, steps=steps, dense=dense)
    numbers = found.numbers()
    if folder is not None:
        numbers["figures"] = [p.name for p in draw(found, folder)]
    return numbers


def draw(found: Study, folder: Path) -> list[Path]:
    """Spectra, matrices, learned numbers on the mesh, truncation errors: PNG files in `folder`."""
    paths = [folder / "spectrum.png", folder / "matrices.png", folder / "edges.png"]
    draw_spectra(paths[0], found.fields)
    draw_matrices(paths[1], found.fields[0])
    draw_edges(paths[2], found)
    if found.consistency is not None:
        paths += [folder / "truncation.png", folder / "consistency.png"]
        draw_truncation(paths[3], found.problem, found.consistency)
        draw_consistency(paths[4], found.consistency, found.problem.dt)
    return paths


def draw_spectra(path: Path, fields: list[FieldStudy]) -> None:
    """Eigenvalues of L_physics and L with the line of stability, and both numerical ranges."""
    with plt.rc_context(pictures.STYLE):
        figure = Figure(figsize=(6.4, 2.9 * len(fields)), layout="constrained")
        for row, f in enumerate(fields):
            axis = figure.add_subplot(len(fields), 1, row + 1)
            n = f.numbers
            (_draw_real_spectrum if f.physics.symmetric and f.learned.symmetric else _draw_complex_spectrum)(axis, f)
            verdict = "stable" if n["learned"]["stable"] else "UNSTABLE"
            name = "" if f.name in ("u", "all") else f"{f.name}: "
            axis.set_title(f"{name}{verdict}, max Re λ(L) = {n['learned']['rightmost']:.3g}, "
                           f"μ$_M$ = {n['learned']['log_norm_mass']:.3g}, |step|$_M$ = {n['learned']['step_norm_mass']:.6g}")
            axis.legend(loc="best", frameon=False)
        pictures.save_figure(figure, path, 150)


def _draw_real_spectrum(axis: Any, f: FieldStudy) -> None:
    """Symmetric operators have real eigenvalues: in order, on a scale that shows the small and the large ones."""
    edge = max(float(np.abs(f.spectra["physics"]).max()), 1e-300)
    for key, colour, label, shift in (("physics", BLUE, r"$L_{physics}$", 0.0), ("learned", ORANGE, "$L$ (learned)", 0.0)):
        values = np.sort(f.spectra[key].real)[::-1]
        axis.plot(values, np.arange(len(values)) + shift, "o" if key == "physics" else ".", ms=5 if key == "physics" else 3.5,
                  color=colour, mec="none", alpha=0.55 if key == "physics" else 1.0, label=label)
    axis.axvline(0.0, color=RED, ls="--", lw=1.2, label="Re λ = 0")
    axis.set_xscale("symlog", linthresh=1e-4 * edge, linscale=0.6)
    axis.set_xlim(-1.5 * edge, max(3e-4 * edge, 1.5 * max(float(v.real.max()) for v in f.spectra.values())))
    axis.set_xlabel("λ")
    axis.set_ylabel("number" if f.complete else "number (part of the spectrum)")


def _draw_complex_spectrum(axis: Any, f: FieldStudy) -> None:
    for key, colour, label in (("physics", BLUE, r"$L_{physics}$"), ("learned", ORANGE, "$L$ (learned)")):
        values, hull = f.spectra[key], f.ranges[key]
        loop = np.append(hull, hull[0])
        axis.fill(loop.real, loop.imag, color=colour, alpha=0.08, lw=0)
        axis.plot(loop.real, loop.imag, color=colour, lw=0.8, alpha=0.8)
        axis.plot(values.real, values.imag, "o" if key == "physics" else ".", ms=5 if key == "physics" else 3.5, color=colour,
                  mec="none", alpha=0.55 if key == "physics" else 1.0, label=label)
    axis.plot([], [], color="grey", lw=0.8, label="numerical range (M)")
    axis.axvline(0.0, color=RED, ls="--", lw=1.2, label="Re λ = 0")
    axis.set_xlabel("Re λ")
    axis.set_ylabel("Im λ" if f.complete else "Im λ (part of the spectrum)")


def draw_matrices(path: Path, f: FieldStudy, window: int = 60) -> None:
    """|L_physics|, |L_neural| and |L| in reverse Cuthill-McKee order: all of it, and a window in its middle."""
    order = reverse_cuthill_mckee(csr_array(f.physics.K + f.physics.M), symmetric_mode=True)
    n, small = f.physics.n, f.physics.small and f.learned.small
    middle = order[max(0, n // 2 - window // 2):][:window]
    columns = np.eye(n) if small else np.zeros((n, len(middle)))
    if not small:
        columns[middle, np.arange(len(middle))] = 1.0
    L, total = f.physics.apply(columns), f.learned.apply(columns)
    parts = (L, total - L, total)
    titles = (r"$|L_{physics}|$", r"$|L_{neural}|$", r"$|L|$")
    top = max(float(np.abs(L).max()), 1e-300)
    norm, colours = LogNorm(1e-5 * top, top), colormaps["magma"]
    with plt.rc_context(pictures.STYLE):
        rows = 2 if small else 1
        figure = Figure(figsize=(7.4, 2.45 * rows), layout="constrained")
        axes = []
        for k, (part, title) in enumerate(zip(parts, titles)):
            size = np.abs(part)
            views = [_binned(size[np.ix_(order, order)], 500), size[np.ix_(middle, middle)]] if small else [size[middle]]
            for row, view in enumerate(views):
                axis = figure.add_subplot(rows, 3, row * 3 + k + 1)
                axis.imshow(np.maximum(view, 1e-6 * top), norm=norm, cmap=colours, interpolation="nearest")
                axis.set_xticks([])
                axis.set_yticks([])
                if row == 0:
                    share = f.numbers["size"]["frobenius_ratio"]
                    axis.set_title(title + (f"   {share:.2g} of $|L_{{physics}}|_F$" if k == 1 else ""))
                if k == 0:
                    axis.set_ylabel("all nodes" if small and row == 0 else f"{len(middle)} of them")
                axes.append(axis)
        figure.colorbar(ScalarMappable(norm, colours), ax=axes, shrink=0.8, extend="min")
        pictures.save_figure(figure, path, 150)


def _binned(a: np.ndarray, most: int) -> np.ndarray:
    """At most `most` pixels a side, each the largest entry of its block."""
    step = -(-len(a) // most)
    if step == 1:
        return a
    starts = np.arange(0, len(a), step)
    return np.maximum.reduceat(np.maximum.reduceat(a, starts, axis=0), starts, axis=1)


def draw_edges(path: Path, found: Study) -> None:
    """The learned mass factor of each edge, and the change of the stiffness, on the mesh (in 3D: on its surface)."""
    panels = []
    if found.mass_factor is not None:
        panels.append((found.mass_factor, found.problem.consistent, "mass factor of the edge (classical: "
                       f"{found.problem.consistent:g})"))
    panels.append((found.edge_change, 0.0, "change of the stiffness, in units of its diagonal"))
    mesh = found.problem.mesh
    shown = np.ones(len(mesh.edges), dtype=bool)
    if mesh.dim == 3:
        sides = np.concatenate([mesh.boundary_facets[:, [a, b]] for a in range(3) for b in range(a)])
        key = np.array([mesh.n_nodes, 1])
        shown = np.isin(mesh.edges @ key, np.sort(sides, axis=1) @ key)
    lines = mesh.points[mesh.edges[shown]]
    with plt.rc_context(pictures.STYLE):
        width, height = pictures.panel_size(mesh, 4.2)
        tall = height < 0.5 * width
        shape = (len(panels), 1) if tall else (1, len(panels))
        figure = Figure(figsize=((width + 0.9) * shape[1], (height + 0.45) * shape[0]), layout="constrained")
        for k, (values, middle, title) in enumerate(panels):
            axis = pictures.axes_of(figure, (*shape, k + 1), mesh)
            reach = max(float(np.abs(values - middle).max()), 1e-12)
            norm, colours = TwoSlopeNorm(middle, middle - reach, middle + reach), colormaps["coolwarm"]
            many = 0.5 if len(lines) > 4000 else 1.4
            collection = (LineCollection if mesh.dim == 2 else Line3DCollection)(
                list(lines), colors=colours(norm(values[shown])), linewidths=many)
            (axis.add_collection if mesh.dim == 2 else axis.add_collection3d)(collection)
            pictures.draw_outline(axis, mesh)
            axis.set_title(title)
            figure.colorbar(ScalarMappable(norm, colours), ax=axis, shrink=0.8)
        pictures.save_figure(figure, path, 150)


def draw_truncation(path: Path, p: Problem, c: Consistency) -> None:
    """Maps of the one-step error before and after learning, on one logarithmic scale."""
    low, high = np.quantile(c.maps, 0.02), float(c.maps.max())
    high = max(high, 1e-300)
    low = max(low, 1e-4 * high)
    shown = np.log10(np.maximum(c.maps, low))
    norm, colours = Normalize(np.log10(low), np.log10(high) + 1e-9), colormaps["inferno"]
    with plt.rc_context(pictures.STYLE):
        width, height = pictures.panel_size(p.mesh, 3.4)
        shape = (2, 1) if height < 0.5 * width else (1, 2)
        figure = Figure(figsize=(width * shape[1] + 0.9, (height + 0.4) * shape[0]), layout="constrained")
        axes = []
        titles = ("classical step", f"learned step: {c.numbers['ratio']:.2g} of it")
        for k, title in enumerate(titles):
            axis = pictures.axes_of(figure, (*shape, k + 1), p.mesh)
            pictures.draw_field(axis, p.mesh, shown[k], norm, colours)
            axis.set_title(title)
            axes.append(axis)
        figure.colorbar(ScalarMappable(norm, colours), ax=axes, shrink=0.8, label="log$_{10}$ of the one-step error per time")
        pictures.save_figure(figure, path, 150)


def draw_consistency(path: Path, c: Consistency, dt: float) -> None:
    """The one-step error over time, before and after."""
    with plt.rc_context(pictures.STYLE):
        figure = Figure(figsize=(5.2, 2.6), layout="constrained")
        axis = figure.add_subplot()
        for values, colour, label in ((c.classical, BLUE, "classical"), (c.learned, ORANGE, "learned")):
            axis.semilogy(c.steps * dt, np.maximum(values, 1e-300), ".-", color=colour, lw=1, ms=4, label=label)
        axis.set_xlabel("time")
        axis.set_ylabel("one-step error per time")
        axis.set_title(f"{100 * c.numbers['removed']:.0f}% of the one-step error removed")
        axis.legend(frameon=False)
        pictures.save_figure(figure, path, 150)
