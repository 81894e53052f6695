"""The benchmark of elements: rows, points, errors of a data set, and what it refuses."""

import pytest

from benchmarks import elements
from dgnet.errors import InputError
from dgnet_paper.scenarios import get


def test_rows_and_ratios() -> None:
    found = elements.run(size="small", steps=12, repeats=1, trajectories=2)
    mesh = get("laser-heat", "small").mesh
    more = mesh.n_nodes + len(mesh.edges)
    assert {r["model"]: r["points"] for r in found["rows"]} == {
        "classical_lumped": mesh.n_nodes, "classical_consistent": mesh.n_nodes, "classical_p2": more, "classical_refined": more}
    assert all(r["us_per_step"] > 0 for r in found["rows"])
    assert "at equal nodes" in elements.table(found)


def test_a_flow_is_refused() -> None:
    with pytest.raises(InputError, match="without a flow"):
        elements.run("cylinder", "small")
