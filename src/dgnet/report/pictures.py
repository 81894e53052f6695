"""Pictures of fields on meshes with matplotlib alone: strips of snapshots, animations, meshes."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FFMpegWriter
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import LightSource, Normalize
from matplotlib.figure import Figure
from matplotlib.mathtext import MathTextParser
from matplotlib.text import Text
from mpl_toolkits.mplot3d.art3d import Poly3DCollection
from PIL import Image

from dgnet.errors import InputError
from dgnet.files import visible, writing
from dgnet.mesh import Mesh

STYLE: dict[Any, Any] = {"font.size": 9.5, "axes.titlesize": 9.5, "figure.facecolor": "white", "font.family": "DejaVu Sans"}
"""Widest pictures have 1,200 pixels at 110 dpi, and a page shows them with 900: letters are then 8 points high."""
_PIECES = 12_000  # triangles of a drawn surface, about
COLOURS = 256
"""Palette of a written picture: small files, no visible bands in the maps used here."""


def legible(figure: Figure) -> Figure:
    """The same figure; names with $ signs that are no formula are shown as they are, control characters written out."""
    for text in figure.findobj(Text):
        shown = visible(text.get_text(), but="\n")
        if shown != text.get_text():
            text.set_text(shown)
        if "$" in text.get_text():
            try:
                _MATHS.parse(text.get_text())
            except ValueError:
                text.set_parse_math(False)
    return figure


_MATHS: Any = MathTextParser("path")


class Film:
    """A figure with one panel per field [N, F] whose colours change from frame to frame; written as GIF or MP4."""

    def __init__(self, mesh: Mesh, fields: Sequence[str], scales: Sequence[tuple[Normalize, str]], dpi: int = 110) -> None:
        self.mesh, self.scales, self.dpi = mesh, [(norm, matplotlib.colormaps[name]) for norm, name in scales], dpi
        width, height = panel_size(mesh, 4.4)
        bar, top = 1.0, 0.38
        columns = min(len(fields), 2 if height < 1.5 * width else 3)
        rows = -(-len(fields) // columns)
        # encoders want even numbers of pixels
        size = [2 * round(inches * dpi / 2) / dpi for inches in (columns * (width + bar), rows * (height + top) + 0.1)]
        self.axes, self.artists = [], []
        letters = max(9.0, 8 * 96 / dpi)  # at least 8 points where a page shows a pixel as a pixel
        with plt.rc_context({**STYLE, "font.size": letters, "axes.titlesize": letters + 1}):
            self.figure = Figure(figsize=(size[0], size[1]))
            FigureCanvasAgg(self.figure)
            for f, (name, (norm, colours)) in enumerate(zip(fields, self.scales)):
                row, column = divmod(f, columns)
                left, bottom = column * (width + bar) + 0.05, size[1] - (row + 1) * (height + top)
                axis = axes_of(self.figure, (rows, columns, f + 1), mesh)
                axis.set_position((left / size[0], bottom / size[1], (width - 0.1) / size[0], height / size[1]))
                self.artists.append(draw_field(axis, mesh, np.zeros(mesh.n_nodes), norm, colours))
                beside = self.figure.add_axes(((left + width - 0.02) / size[0], (bottom + 0.12 * height) / size[1],
                                               0.12 / size[0], 0.76 * height / size[1]))
                self.figure.colorbar(matplotlib.cm.ScalarMappable(norm, colours), cax=beside, label=name)
                self.axes.append(axis)
        legible(self.figure)

    def show(self, u: np.ndarray, title: str) -> None:
        for f, (artist, (norm, colours)) in enumerate(zip(self.artists, self.scales)):
            if self.mesh.dim == 2:
                artist.set_array(np.asarray(u[:, f], dtype=float))
            else:
                rgba = _surface(self.mesh, u[:, f], norm, colours)[1]
                artist.set_facecolor(rgba)
                artist.set_edgecolor(rgba)
        self.axes[0].set_title(title, pad=3)

    def gif(self, path: Path, shots: Iterable[tuple[np.ndarray, str]], progress: Callable[[int], None] | None = None,
            milliseconds: int = 80) -> None:
        images: list[Image.Image] = []
        palette = self._palette() if self.mesh.dim == 2 else None  # light makes more colours than the maps have
        for u, title in shots:
            self.show(u, title)
            self.figure.set_dpi(self.dpi)
            canvas: Any = self.figure.canvas
            canvas.draw()
            frame = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
            images.append(frame.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE) if palette is None else
                          frame.quantize(palette=palette, dither=Image.Dither.NONE))
            if progress is not None:
                progress(len(images))
        write_gif(path, images, milliseconds)

    def _palette(self) -> Image.Image:
        """As many shades of each colour map as a GIF holds, and some of grey: a palette by frequency would show bands."""
        maps = list({m.name: m for _, m in self.scales}.values())
        shades = (COLOURS - 16) // len(maps)
        grey = np.repeat(np.linspace(0, 1, 16)[:, None], 3, axis=1)
        rows = np.concatenate([*(m(np.linspace(0, 1, shades))[:, :3] for m in maps), grey])
        made = Image.new("P", (1, 1))
        made.putpalette((255 * rows).round().astype(np.uint8).tobytes())
        return made

    def mp4(self, path: Path, shots: Iterable[tuple[np.ndarray, str]], progress: Callable[[int], None] | None = None,
            rate: int = 15) -> None:
        """Through the program ffmpeg; its container follows from the suffix, so that the partial file ends in .mp4, too."""
        needs_ffmpeg()
        writer = FFMpegWriter(fps=rate, bitrate=3000)
        done = 0
        try:
            with writing(path) as part, writer.saving(self.figure, str(part), self.dpi):
                for u, title in shots:
                    self.show(u, title)
                    writer.grab_frame()
                    done += 1
                    if progress is not None:
                        progress(done)
        except (CalledProcessError, BrokenPipeError, FileNotFoundError) as error:
            raise InputError(f"ffmpeg could not write {path}") from error


def write_gif(path: Path, images: Sequence[Image.Image], milliseconds: int) -> None:
    """Frames in a loop; the last one stays for a while."""
    pause = [milliseconds] * (len(images) - 1) + [1500]
    with writing(path) as part:
        images[0].save(part, format="GIF", save_all=True, append_images=images[1:], duration=pause, loop=0, optimize=False)


def needs_ffmpeg() -> None:
    if shutil.which("ffmpeg") is None:
        raise InputError("an MP4 needs the program ffmpeg, which is not on the PATH; install it or write a GIF")


def robust_limits(values: np.ndarray) -> tuple[float, float]:
    """Of a colour scale for any values: a few extreme nodes left out, symmetric where values have both signs."""
    low, high = (float(v) for v in np.quantile(values, [0.0005, 0.9995]))
    if low < 0 < high and -low > 0.25 * high and high > -0.25 * low:
        low, high = -max(-low, high), max(-low, high)
    return (low, high) if high > low else (low, low + 1.0)


def scale_of(frames: np.ndarray) -> tuple[Normalize, str]:
    """One colour scale for frames [K, N]: two-coloured where it is symmetric, else a heat map."""
    low, high = robust_limits(frames)
    return Normalize(low, high), "RdBu_r" if low == -high else "inferno"


def mesh_picture(path: Path, mesh: Mesh) -> None:
    """The mesh itself, boundaries in colour."""
    with plt.rc_context(STYLE):
        width, height = panel_size(mesh, 4.5)
        figure = Figure(figsize=(width, height + 0.3))
        axis = axes_of(figure, (1, 1, 1), mesh)
        if mesh.dim == 2:
            lines = mesh.points[mesh.edges]
            axis.add_collection(LineCollection(list(lines), colors="#8899aa", linewidths=0.25))
            for k, (name, facets) in enumerate(mesh.boundaries.items()):
                axis.add_collection(LineCollection(list(mesh.points[facets]), colors=f"C{k}", linewidths=1.4, label=name))
            if mesh.boundaries:
                axis.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=len(mesh.boundaries), frameon=False)
            draw_outline(axis, mesh)
        else:
            faces = Poly3DCollection(list(mesh.points[mesh.boundary_facets]), edgecolors="#334455", linewidths=0.15)
            faces.set_facecolor(_lit(mesh, np.tile([[0.75, 0.82, 0.9, 1.0]], (len(mesh.boundary_facets), 1))))
            axis.add_collection3d(faces)
            draw_outline(axis, mesh)
        figure.subplots_adjust(left=0.01, right=0.99, bottom=0.1 if mesh.dim == 2 else 0.0, top=1.0)
        save_figure(figure, path, 110, colours=24)


# ---------------------------------------------------------------------- pieces


def panel_size(mesh: Mesh, width: float | None = None) -> tuple[float, float]:
    extent = np.ptp(mesh.points, axis=0)
    aspect = extent[1] / extent[0] if mesh.dim == 2 else 0.85
    w = width if width is not None else (2.0 if aspect > 0.6 else 2.8)
    return w, w * aspect


def axes_of(figure: Figure, place: tuple[int, int, int], mesh: Mesh) -> Any:
    axis = figure.add_subplot(*place, projection="3d" if mesh.dim == 3 else None)
    axis.set_axis_off()
    return axis


def draw_outline(axis: Any, mesh: Mesh) -> None:
    low, high = mesh.points.min(axis=0), mesh.points.max(axis=0)
    pad = 0.01 * (high - low)
    axis.set_xlim(low[0] - pad[0], high[0] + pad[0])
    axis.set_ylim(low[1] - pad[1], high[1] + pad[1])
    if mesh.dim == 2:
        axis.set_aspect("equal")
    else:
        axis.set_zlim(low[2], high[2])
        axis.set_box_aspect(high - low, zoom=1.1)
        axis.view_init(elev=28, azim=-52)


def draw_field(axis: Any, mesh: Mesh, values: np.ndarray, norm: Normalize, colours: matplotlib.colors.Colormap) -> Any:
    """Draws a field and returns what carries its colours."""
    if mesh.dim == 2:
        faces = axis.tripcolor(*mesh.points.T, mesh.cells, values, shading="gouraud", norm=norm, cmap=colours, rasterized=True)
        axis.add_collection(LineCollection(list(mesh.points[mesh.boundary_facets]), colors="black", linewidths=0.5))
    else:
        corners, rgba = _surface(mesh, values, norm, colours)
        faces = Poly3DCollection(list(corners), linewidths=0.3)
        faces.set_facecolor(rgba)
        faces.set_edgecolor(rgba)  # hides the seams between triangles
        axis.add_collection3d(faces)
    draw_outline(axis, mesh)
    return faces


def _surface(mesh: Mesh, values: np.ndarray, norm: Normalize, colours: matplotlib.colors.Colormap) -> tuple[np.ndarray, np.ndarray]:
    """Triangles [n, 3, 3] of the surface and their colours [n, 4]; cut in four once or more often, so that no bands are seen."""
    x, u, facets = mesh.points[mesh.boundary_facets], values[mesh.boundary_facets], len(mesh.boundary_facets)
    cuts = int(np.clip(np.log(_PIECES / facets) / np.log(4), 1, 3))
    for _ in range(cuts):
        x, u = _quartered(x, u)
    return x, _lit(mesh, colours(norm(u.mean(axis=1))), 4**cuts)


def _quartered(x: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Triangles [F, 3, 3] with corner values [F, 3] -> four each, linear on it: [4F, 3, 3] and [4F, 3]."""
    middles = np.array([[[2, 0, 0], [1, 1, 0], [1, 0, 1]], [[1, 1, 0], [0, 2, 0], [0, 1, 1]], [[1, 0, 1], [0, 1, 1], [0, 0, 2]],
                        [[1, 1, 0], [0, 1, 1], [1, 0, 1]]]) / 2  # [piece, corner, weight]
    return np.einsum("pcw,fwd->fpcd", middles, x).reshape(-1, 3, 3), np.einsum("pcw,fw->fpc", middles, u).reshape(-1, 3)


def _lit(mesh: Mesh, rgba: np.ndarray, copies: int = 1) -> np.ndarray:
    """Darken faces that turn away from a lamp up and left."""
    normal = mesh.facet_geometry()[1]
    light = LightSource(azdeg=300, altdeg=50).direction
    bright = np.repeat(0.72 + 0.28 * np.clip(normal @ light, -0.3, 1), copies)[:, None]
    return np.column_stack([np.clip(rgba[:, :3] * bright, 0, 1), np.ones(len(rgba))])


def _quantised(figure: Figure, dpi: int, colours: int = COLOURS) -> Image.Image:
    buffer = io.BytesIO()
    legible(figure).savefig(buffer, dpi=dpi, format="png")
    image = Image.open(buffer).convert("RGB")
    return image.quantize(colours, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)


def save_figure(figure: Figure, path: Path, dpi: int = 100, colours: int = COLOURS) -> None:
    with writing(path) as part:
        _quantised(figure, dpi, colours).save(part, format="PNG", optimize=True)
