"""Drawings of runs on the plate: the heat with the lasers above it, and a prediction beside the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

from dgnet.mesh import Mesh
from dgnet.progress import Report
from dgnet.report.figures import ERROR_MAP, Band, colour_bar, error_norm, grid, layout
from dgnet.report.pictures import STYLE, draw_field, legible, write_gif
from dgnet_paper.scenarios.spots import Spots

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
        self.lasers, self.norm = Lasers(mesh, spots), _heat(states)

    def strip(self, path: Path, times: list[float]) -> None:
        """One row of snapshots with one colour bar."""
        rows = [round(t / self.dt) for t in times]
        band = Band([("", self.states[rows])], self.norm, HEAT_MAP, "temperature in K", "max")
        grid(path, self.mesh, [band], [f"t = {t:g} s" for t in times], width=3.3, dpi=150,
             decorate=lambda axis, row, column: self.lasers.draw(axis, times[column]))

    def animation(self, path: Path, frames: int, report: Report) -> None:
        """A GIF with one palette for all frames."""
        with matplotlib.rc_context({**STYLE, "font.size": 10, "axes.titlesize": 11}):
            figure, ((axis,),) = layout(self.mesh, [1], 1, 4.8, 0.0, left=0.05)
            colour_bar(figure, axis, axis, self.norm, matplotlib.colormaps[HEAT_MAP], "temperature in K", "max")
            panels = [(axis, self.states, self.norm, HEAT_MAP)]
            _animate(path, figure, self.mesh, panels, self.lasers, self.dt, frames, "ten lasers on a steel plate", 110,
                     lambda done, total: report("animation", done, total))


class Duel:
    """One trajectory [T+1, N] three times: the truth, DGNet, and the classical solver on the same mesh."""

    def __init__(self, mesh: Mesh, spots: Spots, truth: np.ndarray, ours: np.ndarray, rival: np.ndarray, dt: float,
                 ambient: float) -> None:
        self.mesh, self.dt, self.truth, self.ours = mesh, dt, truth, ours
        self.errors = np.abs(ours - truth), np.abs(rival - truth)
        whole_norm = float(np.linalg.norm(truth - ambient))
        self.rne = float(np.linalg.norm(ours - truth)) / whole_norm, float(np.linalg.norm(rival - truth)) / whole_norm
        self.lasers, self.heat, self.error = Lasers(mesh, spots, rings=False), _heat(truth), error_norm(*self.errors)

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
        with matplotlib.rc_context({**STYLE, "font.size": 9, "axes.titlesize": 10}):
            figure, (above, below) = layout(self.mesh, [1, 1], 2, 3.3, 0.0, left=0.05, between=0.32)
            titles = ("DGNet", f"|error| of DGNet ({self.rne[0]:.2%} in all)", f"|error| of classical ({self.rne[1]:.2%} in all)")
            for axis, title in zip((above[1], *below), titles):
                axis.set_title(title, pad=3)
            for axis, norm, colours, label in ((above[1], self.heat, HEAT_MAP, "temperature in K"),
                                               (below[1], self.error, ERROR_MAP, "error in K")):
                colour_bar(figure, axis, axis, norm, matplotlib.colormaps[colours], label, "max")
            panels = [(above[0], self.truth, self.heat, HEAT_MAP), (above[1], self.ours, self.heat, HEAT_MAP),
                      *((axis, error, self.error, ERROR_MAP) for axis, error in zip(below, self.errors))]
            _animate(path, figure, self.mesh, panels, self.lasers, self.dt, frames, "truth", 150,
                     lambda done, total: report("animation of DGNet", done, total))


def _heat(states: np.ndarray) -> PowerNorm:
    """The eye wants contrast: the first faint trails are lifted, a few nodes at the very peak may saturate."""
    return PowerNorm(0.65, float(states.min()), float(np.quantile(states[-1], 0.999)))


def _animate(path: Path, figure: Figure, mesh: Mesh, panels: Sequence[tuple[Any, np.ndarray, Normalize, str]], lasers: Lasers,
             dt: float, frames: int, title: str, milliseconds: int, tell: Callable[[int, int], None]) -> None:
    """A GIF with one palette: panels (axis, values [T+1, N], scale, colours), lasers over the first one, which has the time."""
    steps = sorted({round(k) for k in np.linspace(0, len(panels[0][1]) - 1, frames)})
    canvas, palette, first = FigureCanvasAgg(legible(figure)), _palette(), panels[0][0]
    drawn = [draw_field(axis, mesh, values[-1], norm, matplotlib.colormaps[colours]) for axis, values, norm, colours in panels]
    images: list[Image.Image] = []
    moving: list[Any] = []
    for k in steps:
        for artist in moving:
            artist.remove()
        for panel, (_, values, _, _) in zip(drawn, panels):
            panel.set_array(values[k])
        moving = lasers.draw(first, k * dt)
        first.set_title(f"{title}, t = {k * dt:4.1f} s", pad=3)
        canvas.draw()
        frame = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
        images.append(frame.quantize(palette=palette, dither=Image.Dither.NONE))
        tell(len(images), len(steps))
    write_gif(path, images, milliseconds)


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
