"""The documents are true: the tutorial is followed word for word, commands and options exist, listings run, links hold."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import meshio
import pytest

import dgnet.cli  # noqa: F401, registers the commands
import dgnet_paper.cli
from dgnet.cli import shell

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
IDS = [str(p.relative_to(ROOT / "docs")) for p in PAGES]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.S | re.M)


def anchors(path: Path) -> set[str]:
    """Headings as links name them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M), re.M)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", h.lower()).strip()) for h in headings}


@pytest.mark.slow
def test_the_tutorial_word_for_word(tmp_path: Path) -> None:
    script = "set -euo pipefail\n" + "\n".join(blocks(ROOT / "docs" / "tutorial.md", "sh"))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=600,
                          env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search(r"^(warn|error)\b", done.stdout, re.M)  # of `check`
    told, run = json.loads((tmp_path / "scores.json").read_text()), tmp_path / "run"
    assert told["error_ratio"] < 0.8 and told["trajectories"] == 2 and told["truth"] == "given" and told["paper"] is None
    scores = told["scores"]
    assert scores["universal-tuned"]["rne_from_offset"] < 0.3 * scores["classical_consistent"]["rne_from_offset"]
    every = zip(*(scores[k]["trajectories"] for k in ("universal-tuned", "classical_consistent", "classical_lumped")), strict=True)
    assert all(ours < min(theirs) for ours, *theirs in every)
    for name in ("plate.pvd", "plate.gif", "mine.png", "run/report.html"):
        assert (tmp_path / name).stat().st_size > 100, name
    assert len(meshio.read(sorted((tmp_path / "plate-vtu").glob("*.vtu"))[-1]).point_data["T"]) == 275
    assert str(tmp_path) not in (run / "run.toml").read_text() and not [p for p in run.rglob("*") if p.suffix == ".py"]
    assert "range of the training data" in done.stdout.split("mine.png")[0].rsplit("plate.gif")[-1]  # as the text says


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    listed = re.findall(r"([\w/-]+\.md)", text[text.index("nav:"):])
    assert not set(listed) - set(IDS)
    assert not [page for page in IDS if page not in listed and not page.startswith("results/")]  # commands write those


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=[*IDS, "README.md"])
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        place = page.parent / name if name else page
        assert place.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(place), f"{page.name} links to {target}"


def commands() -> list[tuple[str, list[str]]]:
    """Every line of a shell block that runs dgnet or dgnet-paper, continued lines joined."""
    found = []
    for page in [*PAGES, ROOT / "README.md"]:
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True) if "dgnet" in line and '"' not in line else []
                at = next((k for k, word in enumerate(words) if word in ("dgnet", "dgnet-paper")), None)
                if at is not None:
                    found.append((page.name, words[at:]))
    return found


def test_commands_and_options_exist() -> None:
    lines = commands()
    assert len(lines) > 15
    for page, words in lines:
        command, words = shell.commands(dgnet_paper.cli.app if words[0] == "dgnet-paper" else shell.app), words[1:]
        while words and words[0] in getattr(command, "commands", {}):
            command, words = command.commands[words[0]], words[1:]
        assert not hasattr(command, "commands"), f"{page}: dgnet {' '.join(words)} is no command"
        known = {option for p in command.params for option in p.opts + p.secondary_opts}
        for word in words:
            assert not word.startswith("--") or word in known, f"{page}: {command.name} has no option {word}"


def test_the_reference_has_every_command_and_option() -> None:
    names: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "site" / "commands.py"))
    text = names["on_page_markdown"]((ROOT / "docs" / "commands.md").read_text())
    assert names["PLACE"] not in text

    def look(command: Any, called: str) -> None:
        assert f"### {called}\n" in text
        for child, inner in getattr(command, "commands", {}).items():
            look(inner, f"{called} {child}")
        if not hasattr(command, "commands"):
            part = text[text.index(f"### {called}\n"):].split("\n### ")[0]
            assert not [o for p in command.params for o in p.opts if o.startswith("--") and o != "--help" and f"`{o}`" not in part]

    for program, app in (("dgnet", shell.app), ("dgnet-paper", dgnet_paper.cli.app)):
        for name, command in shell.commands(app).commands.items():
            if not command.hidden:
                look(command, f"{program} {name}")


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_listings(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TOML parses; Python compiles, and in the how-tos it runs."""
    for text in blocks(page, "toml"):
        tomllib.loads(text)
    monkeypatch.chdir(tmp_path)
    for text in blocks(page, "python"):
        code = compile(text, page.name, "exec")
        if page.parent.name == "how-to":
            names: dict[str, Any] = {}
            exec(code, names)
            if page.stem == "unknown-coefficient":
                assert names["model"].coefficients() == pytest.approx({"diffusion": 0.5}, rel=1e-4)


@pytest.mark.skipif(not (find_spec("mkdocs") and find_spec("mkdocstrings_handlers")), reason="needs the extra docs: make docs")
def test_the_pages_are_built_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)], cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "api" / "models.html").read_text()
    assert "dgnet.models.dgnet.config.DGNetConfig" in page and "every learned part" in page.lower()
