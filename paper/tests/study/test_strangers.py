"""Cells of strangers: what they could carry is refused or left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dgnet.errors import InputError
from dgnet.files import write_json
from dgnet_paper.study import stored
from dgnet_paper.study.blocks import Head, Lines, Picture, Table, Text, to_markdown


def study(folder: Path, tag: str) -> Path:
    cell = folder / "cells" / tag
    write_json(cell / "cell.json", {"tag": tag, "cell": {"kind": "classical"}, "date": "2024"})
    return cell


TAG = "classical_laser-heat_small_same-mesh_classical_s0"


def test_merge_follows_no_links(tmp_path: Path) -> None:
    cell = study(tmp_path / "theirs", TAG)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "more").write_text("secret")
    os.symlink(tmp_path / "secret", cell / "sample.npz")
    os.symlink(tmp_path / "folder", cell / "run")
    assert stored.merge([tmp_path / "theirs"], tmp_path / "ours") == [TAG]
    assert sorted(p.name for p in (tmp_path / "ours").rglob("*")) == sorted(["cells", TAG, "cell.json"])


def test_merge_of_a_linked_cell_is_refused(tmp_path: Path) -> None:
    cell = study(tmp_path / "theirs", TAG)
    os.replace(cell / "cell.json", tmp_path / "elsewhere.json")
    os.symlink(tmp_path / "elsewhere.json", cell / "cell.json")
    with pytest.raises(InputError, match="symbolic link"):
        stored.merge([tmp_path / "theirs"], tmp_path / "ours")
    assert not list((tmp_path / "ours" / "cells").glob("*/cell.json")) and not list(tmp_path.rglob("*.part*"))


@pytest.mark.parametrize("tag", ["../../x", "/x", "x", "classical_laser-heat_small_same-mesh_classical_s0_n0/../../.."])
def test_merge_writes_nowhere_else(tag: str, tmp_path: Path) -> None:
    write_json(tmp_path / "theirs" / "cells" / "a" / "cell.json", {"tag": tag, "cell": {}})
    with pytest.raises(InputError, match="name of a cell"):
        stored.merge([tmp_path / "theirs"], tmp_path / "ours")
    assert not (tmp_path / "ours" / "cells").exists() or not any((tmp_path / "ours" / "cells").iterdir())


def test_markdown_carries_no_tags(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    from PIL import Image

    Image.new("RGB", (4, 4)).save(tmp_path / "p.png")
    page = to_markdown("T", [Head(evil), Text(f"{evil} and p < 0.1"), Table([evil], [[evil]]), Picture(tmp_path / "p.png", evil),
                             Lines("how", [f"a\n```\n{evil}", f"```{evil}"])], tmp_path / "pictures", "pictures")
    outside = "".join(part for k, part in enumerate(page.split("```")) if k % 2 == 0)
    assert "<script" not in outside and "p < 0.1" in page and page.count("```") == 2
