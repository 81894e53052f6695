"""The demo: lasers run over a steel plate with holes, and the classical solver follows the heat.

One unseen trajectory of the scenario laser-heat on the mesh of the paper. The parts stand alone, so that a demo of a
trained model can reuse them: `trajectory` draws the sources, `simulate` runs a model, `Stage` draws states with the spots.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import PowerNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.tri import Triangulation
from PIL import Image

from dgnet.evaluation.pictures import STYLE
from dgnet.mesh import Mesh
from dgnet.models import Classical, rollout
from dgnet.problems import step_average
from dgnet.scenarios import Scenario, get
from dgnet.scenarios.spots import Spots

Tensor = torch.Tensor

Report = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""

SNAPSHOTS = (3.0, 10.0, 30.0, 60.0)
LASER = "#7df9ff"
_CHUNK = 4  # steps whose sources are averaged at once: memory, and a progress bar that moves


@dataclass(frozen=True)
class Run:
    """What the demo prints and writes to demo.json. `seconds` is the rollout, set-up of the solver included."""

    scenario: str
    nodes: int
    cells: int
    steps: int
    dt: float
    device: str
    backend: str
    seconds: float
    steps_per_second: float
    peak: float
    peak_time: float
    peak_place: tuple[float, ...]
    unit: str = "K"


def demo(out: Path, *, size: str = "paper", seed: int = 0, device: str = "cpu", frames: int = 61,
         report: Report = lambda what, done, total: None) -> tuple[Run, list[Path]]:
    """Run and draw everything: OUT/laser.png, OUT/laser.gif, OUT/demo.json. Returns the figures and the files."""
    scenario = get("laser-heat", size)
    initial, source, spots = trajectory(scenario, seed, device, report)
    run, states = simulate(scenario, initial, source, device, report)
    stage = Stage(scenario.mesh, spots, states[0, :, :, 0].cpu().numpy(), scenario.dt)
    png, gif, record = out / "laser.png", out / "laser.gif", out / "demo.json"
    stage.strip(png, [t for t in SNAPSHOTS if t <= scenario.horizon])
    stage.animation(gif, frames, report)
    _whole(record, lambda part: part.write_text(json.dumps(asdict(run), indent=1) + "\n"))
    return run, [png, gif, record]


def trajectory(scenario: Scenario, seed: int, device: str = "cpu",
               report: Report = lambda what, done, total: None) -> tuple[Tensor, Tensor, Spots]:
    """Initial state [1, N, 1], step-averaged source [1, T, N, 1] and the spots of the first test trajectory."""
    sample = scenario.sample([draw for draw in scenario.draws(1, seed) if draw.split == "test"])
    assert isinstance(sample.source, Spots) and isinstance(sample.initial, Tensor)
    x = torch.tensor(scenario.mesh.points, device=device)
    start = scenario.times[:-1].to(device)
    parts = []
    for k in range(0, scenario.steps, _CHUNK):
        parts.append(step_average(sample.source, x, start[k:k + _CHUNK], scenario.dt, scenario.panels))
        report("lasers, averaged over each step", min(k + _CHUNK, scenario.steps), scenario.steps)
    return sample.initial.to(device), torch.cat(parts, dim=1), sample.source


def simulate(scenario: Scenario, initial: Tensor, source: Tensor, device: str = "cpu",
             report: Report = lambda what, done, total: None) -> tuple[Run, Tensor]:
    """Crank-Nicolson with the consistent mass over the whole trajectory: figures and states [1, T+1, N, 1]."""
    problem, steps = scenario.problem(device=device), source.shape[1]
    model: Any = Classical()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        backend = model.prepare(problem, 1, steps).operator().prepared.label
        begin = time.perf_counter()
        states = rollout(model, problem, initial, source, progress=lambda k: report("heat", k, steps))
        if states.is_cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
    flat = states[0, :, :, 0]
    step, node = divmod(int(flat.argmax()), flat.shape[1])
    mesh = scenario.mesh
    run = Run(scenario.name, mesh.n_nodes, mesh.n_cells, steps, scenario.dt, device, backend, seconds, steps / seconds,
              float(flat[step, node]), step * scenario.dt, tuple(float(v) for v in mesh.points[node]))
    return run, states


# ---------------------------------------------------------------------- drawing


class Stage:
    """A temperature field [T+1, N] with the lasers above it: where each is, and its way over the last second."""

    def __init__(self, mesh: Mesh, spots: Spots, states: np.ndarray, dt: float) -> None:
        self.mesh, self.states, self.dt = mesh, states, dt
        self.paths, self.radius = spots.paths.to("cpu"), spots.radius.cpu().numpy()
        self.triangles = Triangulation(mesh.points[:, 0], mesh.points[:, 1], mesh.cells)
        self.inside = self.triangles.get_trifinder()
        # the eye wants contrast: the first faint trails are lifted, a few nodes at the very peak may saturate
        self.norm = PowerNorm(0.65, float(states.min()), float(np.quantile(states[-1], 0.999)))
        self.low, self.high = mesh.points.min(axis=0), mesh.points.max(axis=0)

    def strip(self, path: Path, times: list[float]) -> None:
        """One row of snapshots with one colour bar."""
        with matplotlib.rc_context({**STYLE, "font.size": 11, "axes.titlesize": 12}):
            figure, axes, bar = self._figure(len(times), 3.3)
            for axis, t in zip(axes, times):
                self._heat(axis, self.states[round(t / self.dt)])
                self._lasers(axis, t)
                axis.set_title(f"t = {t:g} s", pad=2)
            self._bar(figure, bar)
            _whole(path, lambda part: figure.savefig(part, format="png", dpi=150))

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
                moving = self._lasers(axis, k * self.dt)
                axis.set_title(f"ten lasers on a steel plate, t = {k * self.dt:4.1f} s", pad=3)
                canvas.draw()
                frame = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
                images.append(frame.quantize(palette=palette, dither=Image.Dither.NONE))
                report("animation", len(images), len(rows))
        pause = [110] * (len(images) - 1) + [1500]
        _whole(path, lambda part: images[0].save(part, format="GIF", save_all=True, append_images=images[1:],
                                                 duration=pause, loop=0, optimize=False))

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
        heat = axis.tripcolor(self.triangles, values, shading="gouraud", norm=self.norm, cmap="inferno")
        outline = self.mesh.points[self.mesh.boundary_facets]
        axis.add_collection(LineCollection(list(outline), colors="#333333", linewidths=1.2, capstyle="round"))
        return heat

    def _lasers(self, axis: Any, t: float, tail: int = 40) -> list[Any]:
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
        angle = np.linspace(0, 2 * np.pi, 40)
        circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        now = on[:, -1]
        rings = where[now, -1][:, None] + self.radius[now][:, None, None] * circle
        artists.append(axis.add_collection(LineCollection(list(rings), colors=LASER, linewidths=1.0, alpha=0.9)))
        artists.append(axis.scatter(*where[now, -1].T, s=14, color="white", edgecolors=LASER, linewidths=0.8, zorder=3))
        return artists

    def _bar(self, figure: Figure, axis: Any) -> None:
        figure.colorbar(matplotlib.cm.ScalarMappable(self.norm, "inferno"), cax=axis, label="temperature in K",
                        extend="max", extendfrac=0.04)


def _palette() -> Image.Image:
    """256 colours for every frame: the heat map, the lasers over it, and greys for text."""
    heat = (255 * matplotlib.colormaps["inferno"](np.linspace(0, 1, 96))[:, :3]).astype(np.uint8)
    laser = 255 * np.array(to_rgb(LASER))
    mixed = [(1 - a) * heat[::3] + a * laser for a in (0.2, 0.4, 0.65, 0.9)]
    grey = np.repeat(np.linspace(0, 255, 30)[:, None], 3, axis=1)
    colours = np.concatenate([heat, *mixed, grey, np.zeros((1, 3))])[:256].astype(np.uint8)
    image = Image.new("P", (1, 1))
    image.putpalette(colours.ravel().tolist())
    return image


def _whole(path: Path, write: Callable[[Path], Any]) -> None:
    """The file appears under its name only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    write(partial)
    os.replace(partial, path)
