"""Mesh files that strangers may have made are read in a process of their own, with limits on its time and memory.

`python -m dgnet.studio.reading IN OUT.npz SECONDS NODES` reads IN and writes it as `.npz`, which holds arrays only.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from dgnet.errors import InputError
from dgnet.mesh import Mesh, load, save

SUFFIXES = (".msh", ".vtu", ".vtk", ".npz", ".obj", ".stl", ".ply", ".off", ".inp", ".bdf", ".mesh")
"""Formats that are one file. `.xdmf` names others, and `.med` and `.h5m` are containers: those are opened from the command line."""
_MEMORY = 4 << 30  # bytes that the reading process may ask for


def read_upload(name: str, content: bytes, seconds: float, nodes: int) -> Mesh:
    """The mesh of a file of this name. What cannot be read, or takes too long, is an `InputError`."""
    suffix = Path(name).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"'{name}' is not a mesh that can be dropped here (known: {', '.join(SUFFIXES)})")
    with tempfile.TemporaryDirectory(prefix="dgnet-studio-") as folder:
        given, made = Path(folder) / f"mesh{suffix}", Path(folder) / "read.npz"
        given.write_bytes(content)
        command = [sys.executable, "-m", "dgnet.studio.reading", str(given), str(made), str(seconds), str(nodes)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, cwd=folder)
        except subprocess.TimeoutExpired as error:
            raise InputError(f"'{name}' takes longer than {seconds:g} s to read") from error
        if done.returncode or not made.exists():
            said = done.stderr.strip().splitlines()[-1:] if done.returncode == 2 else []
            other = f"'{name}' cannot be read within the limits of time and memory"
            raise InputError(said[0].replace(str(given), f"'{name}'") if said else other)
        return load(made)


def main(given: str, made: str, seconds: str, nodes: str) -> int:
    cpu = int(float(seconds)) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    try:
        mesh = load(given)
        if mesh.n_nodes > int(nodes):
            raise InputError(f"{given} has {mesh.n_nodes:,} nodes; the studio takes up to {int(nodes):,}")
        save(mesh, made)
    except (InputError, MemoryError, RecursionError) as error:
        print(str(error) or "the file needs too much memory", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main(*sys.argv[1:]))
