"""What the page shows after messages of the server, without a browser: its scripts in node, elements are plain objects."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from dgnet import studio
from dgnet.report.viewer import VIEWER

NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="needs node")
def test_banner_and_button_after_a_question_and_another_mesh() -> None:
    assert NODE is not None
    scripts = Path(__file__).with_name("page.js"), VIEWER, Path(studio.__file__).parent / "page"
    done = subprocess.run([NODE, *map(str, scripts)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["asked"]["play"] == "▶" and not seen["asked"]["banner"]
    assert seen["on the way"]["button"] == "Computing: 40%"
    assert seen["told"]["told"] and seen["told"]["banner"] and seen["told"]["play"] == "▶"
    for when in ("another mesh", "a late answer"):
        found = seen[when]
        assert not found["banner"] and not found["told"] and found["playing"] and found["play"] == "❚❚", when
    assert seen["refused"]["hint"] == "No." and seen["refused"]["playing"]
