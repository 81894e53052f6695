"""Drawings of runs on the plate: the heat with the lasers above it, and a prediction beside the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, PowerNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.tri import Triangulation
from PIL import Image

from dgnet.files import writing
from dgnet.mesh import Mesh
from dgnet.output.figures import ERROR_MAP, Band, colour_bar, error_norm, grid, layout
from dgnet.output.pictures import STYLE
from dgnet.progress import Report
from dgnet.scenarios.spots import Spots

LASER = "#7df9ff"
HEAT_MAP = "inferno"


class Lasers:
    """The spots of one trajectory, to be drawn over a plate."""

    def __init__(self, mesh: Mesh, spots: Spots, rings: bool = True) -> None:
        self.paths, self.radius, self.rings = spots.paths.to("cpu"), spots.radius.cpu().numpy(), rings
        self.inside = Triangulation(mesh.points[:, 0], mesh.points[:, 1], mesh.cells).get_trifinder()

    def draw(self, axis: Any, t: float, tail: int = 40) -> list[Any]:
        """Each laser that is on and over the plate: a ring of its radius, and a comet's tail over the last second."""
        if t <= 0:
            return []
        times = torch.linspace(max(0.0, t - 1.0), t, tail + 1, dtype=torch.float64)
        where = self.paths.position(times).numpy()  # [S, tail + 1, 2]
        power = self.paths.power(times).numpy()
        over = np.asarray(self.inside(*where.reshape(-1, 2).T)).reshape(power.shape) >= 0
        on = (power > 0.02) & over
        segments = np.stack([where[:, :-1], where[:, 1:]], axis=2)
        shown = on[:, :-1] & on[:, 1:]
        fade = np.broadcast_to(np.linspace(0.03, 0.9, tail), shown.shape) * power[:, 1:]
        colours = np.concatenate([np.tile(to_rgb(LASER), (int(shown.sum()), 1)), fade[shown][:, None]], axis=1)
        artists = [axis.add_collection(LineCollection(list(segments[shown]), colors=list(colours), linewidths=2.0))]
        now = on[:, -1]
        if self.rings:
            angle = np.linspace(0, 2 * np.pi, 40)
            circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
            rings = where[now, -1][:, None] + self.radius[now][:, None, None] * circle
            artists.append(axis.add_collection(LineCollection(list(rings), colors=LASER, linewidths=1.0, alpha=0.9)))
        artists.append(axis.scatter(*where[now, -1].T, s=14, color="white", edgecolors=LASER, linewidths=0.8, zorder=3))
        return artists


class Scene:
    """A temperature field [T+1, N] with the lasers above it: where each is, and its way over the last second."""

    def __init__(self, mesh: Mesh, spots: Spots, states: np.ndarray, dt: float) -> None:
        self.mesh, self.states, self.dt = mesh, states, dt
        self.lasers = Lasers(mesh, spots)
        self.triangles = Triangulation(mesh.points[:, 0], mesh.points[:, 1], mesh.cells)
        # the eye wants contrast: the first faint trails are lifted, a few nodes at the very peak may saturate
        self.norm = PowerNorm(0.65, float(states.min()), float(np.quantile(states[-1], 0.999)))
        self.low, self.high = mesh.points.min(axis=0), mesh.points.max(axis=0)

    def strip(self, path: Path, times: list[float]) -> None:
        """One row of snapshots with one colour bar."""
        with matplotlib.rc_context({**STYLE, "font.size": 11, "axes.titlesize": 12}):
            figure, axes, bar = self._figure(len(times), 3.3)
            for axis, t in zip(axes, times):
                self._heat(axis, self.states[round(t / self.dt)])
                self.lasers.draw(axis, t)
                axis.set_title(f"t = {t:g} s", pad=2)
            self._bar(figure, bar)
            with writing(path) as part:
                figure.savefig(part, format="png", dpi=150)

    def animation(self, path: Path, frames: int, report: Report) -> None:
        """A GIF with one palette for all frames."""
        rows = sorted({round(k) for k in np.linspace(0, len(self.states) - 1, frames)})
        images: list[Image.Image] = []
        with matplotlib.rc_context({**STYLE, "font.size": 10, "axes.titlesize": 11}):
            figure, (axis,), bar = self._figure(1, 4.8)
            canvas = FigureCanvasAgg(figure)
            self._bar(figure, bar)
            heat = self._heat(axis, self.states[-1])
            moving: list[Any] = []
            palette = _palette()
            for k in rows:
                for artist in moving:
                    artist.remove()
                heat.set_array(self.states[k])
                moving = self.lasers.draw(axis, k * self.dt)
                axis.set_title(f"ten lasers on a steel plate, t = {k * self.dt:4.1f} s", pad=3)
                canvas.draw()
                frame = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
                images.append(frame.quantize(palette=palette, dither=Image.Dither.NONE))
                report("animation", len(images), len(rows))
        _gif(path, images)

    # ------------------------------------------------------------------ pieces

    def _figure(self, panels: int, width: float) -> tuple[Figure, list[Any], Any]:
        extent = self.high - self.low
        height = width * extent[1] / extent[0]
        full, top, right = panels * width, 0.3, 0.95
        figure = Figure(figsize=(full + right, height + top))
        axes = []
        for k in range(panels):
            axis = figure.add_axes((k * width / (full + right), 0.0, width / (full + right), height / (height + top)))
            pad = 0.015 * extent
            axis.set(xlim=(self.low[0] - pad[0], self.high[0] + pad[0]), ylim=(self.low[1] - pad[1], self.high[1] + pad[1]))
            axis.set_aspect("equal")
            axis.set_axis_off()
            axes.append(axis)
        bar = figure.add_axes(((full + 0.15) / (full + right), 0.12, 0.12 / (full + right), 0.7))
        return figure, axes, bar

    def _heat(self, axis: Any, values: np.ndarray) -> Any:
        heat = axis.tripcolor(self.triangles, values, shading="gouraud", norm=self.norm, cmap=HEAT_MAP)
        outline = self.mesh.points[self.mesh.boundary_facets]
        axis.add_collection(LineCollection(list(outline), colors="#333333", linewidths=1.2, capstyle="round"))
        return heat

    def _bar(self, figure: Figure, axis: Any) -> None:
        figure.colorbar(matplotlib.cm.ScalarMappable(self.norm, HEAT_MAP), cax=axis, label="temperature in K",
                        extend="max", extendfrac=0.04)


class Duel:
    """One trajectory [T+1, N] three times: the truth, DGNet, and the classical solver on the same mesh."""

    def __init__(self, mesh: Mesh, spots: Spots, truth: np.ndarray, ours: np.ndarray, rival: np.ndarray, dt: float,
                 ambient: float) -> None:
        self.mesh, self.dt, self.truth, self.ours = mesh, dt, truth, ours
        self.errors = np.abs(ours - truth), np.abs(rival - truth)
        whole_norm = float(np.linalg.norm(truth - ambient))
        self.rne = float(np.linalg.norm(ours - truth)) / whole_norm, float(np.linalg.norm(rival - truth)) / whole_norm
        self.lasers = Lasers(mesh, spots, rings=False)
        self.heat = PowerNorm(0.65, float(truth.min()), float(np.quantile(truth[-1], 0.999)))
        self.error = error_norm(*self.errors)

    def picture(self, path: Path, times: list[float], who: str = "Test trajectory") -> None:
        """Rows: truth, DGNet and both errors on one scale; columns: times."""
        rows = [round(t / self.dt) for t in times]
        ours, rival = self.errors
        bands = [Band([("truth", self.truth[rows]), ("DGNet", self.ours[rows])], self.heat, HEAT_MAP, "temperature in K", "max"),
                 Band([("|error| of DGNet", ours[rows]), ("|error| of classical", rival[rows])], self.error, ERROR_MAP,
                      "error in K, one scale", "max")]
        heading = (f"{who}: relative error {self.rne[0]:.2%} with DGNet, {self.rne[1]:.2%} with the classical solver on the same "
                   "mesh")

        def lasers(axis: Any, row: int, column: int) -> None:
            if row == 0:
                self.lasers.draw(axis, times[column])

        grid(path, self.mesh, bands, [f"t = {t:g} s" for t in times], heading, width=2.5, dpi=150, decorate=lasers)

    def animation(self, path: Path, frames: int, report: Report) -> None:
        """Two rows of two panels: truth and DGNet above, their errors below."""
        steps = sorted({round(k) for k in np.linspace(0, len(self.truth) - 1, frames)})
        images: list[Image.Image] = []
        with matplotlib.rc_context({**STYLE, "font.size": 9, "axes.titlesize": 10}):
            figure, axes = layout(self.mesh, [1, 1], 2, 3.3, 0.0, left=0.05, between=0.32)
            canvas = FigureCanvasAgg(figure)
            panels = [(axes[0][0], self.truth, self.heat, HEAT_MAP, "truth"), (axes[0][1], self.ours, self.heat, HEAT_MAP, "DGNet"),
                      (axes[1][0], self.errors[0], self.error, ERROR_MAP, f"|error| of DGNet ({self.rne[0]:.2%} in all)"),
                      (axes[1][1], self.errors[1], self.error, ERROR_MAP, f"|error| of classical ({self.rne[1]:.2%} in all)")]
            drawn = [_plate(axis, self.mesh, values[-1], norm, colours) for axis, values, norm, colours, _ in panels]
            for axis, _, _, _, title in panels:
                axis.set_title(title, pad=3)
            for (axis, _, norm, colours, _), label in ((panels[1], "temperature in K"), (panels[3], "error in K")):
                colour_bar(figure, axis, axis, norm, matplotlib.colormaps[colours], label, "max")
            moving: list[Any] = []
            palette = _palette()
            for k in steps:
                for artist in moving:
                    artist.remove()
                for panel, (_, values, _, _, _) in zip(drawn, panels):
                    panel.set_array(values[k])
                moving = self.lasers.draw(axes[0][0], k * self.dt)
                axes[0][0].set_title(f"truth, t = {k * self.dt:4.1f} s", pad=3)
                canvas.draw()
                frame = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
                images.append(frame.quantize(palette=palette, dither=Image.Dither.NONE))
                report("animation of DGNet", len(images), len(steps))
        _gif(path, images, 150)


def _plate(axis: Any, mesh: Mesh, values: np.ndarray, norm: Normalize, colours: str) -> Any:
    heat = axis.tripcolor(*mesh.points.T, mesh.cells, values, shading="gouraud", norm=norm, cmap=colours)
    outline = mesh.points[mesh.boundary_facets]
    axis.add_collection(LineCollection(list(outline), colors="#333333", linewidths=1.0, capstyle="round"))
    low, high = mesh.points.min(axis=0), mesh.points.max(axis=0)
    pad = 0.01 * (high - low)
    axis.set(xlim=(low[0] - pad[0], high[0] + pad[0]), ylim=(low[1] - pad[1], high[1] + pad[1]))
    axis.set_aspect("equal")
    return heat


def _gif(path: Path, images: list[Image.Image], milliseconds: int = 110) -> None:
    pause = [milliseconds] * (len(images) - 1) + [1500]
    with writing(path) as part:
        images[0].save(part, format="GIF", save_all=True, append_images=images[1:], duration=pause, loop=0, optimize=False)


def _palette() -> Image.Image:
    """256 colours for every frame: the heat map, the lasers over it, the map of errors, and greys for text."""
    heat = (255 * matplotlib.colormaps[HEAT_MAP](np.linspace(0, 1, 88))[:, :3]).astype(np.uint8)
    error = 255 * matplotlib.colormaps[ERROR_MAP](np.linspace(0, 1, 56))[:, :3]
    laser = 255 * np.array(to_rgb(LASER))
    mixed = [(1 - a) * heat[::4] + a * laser for a in (0.2, 0.4, 0.65, 0.9)]
    grey = np.repeat(np.linspace(0, 255, 24)[:, None], 3, axis=1)
    colours = np.concatenate([heat, error, *mixed, grey]).astype(np.uint8)
    assert len(colours) == 256
    image = Image.new("P", (1, 1))
    image.putpalette(colours.ravel().tolist())
    return image
