"""The order of the folders: each imports only those before it, and the truth shares no code with what it judges."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "dgnet"
PAPER = Path(__file__).parents[1] / "paper" / "dgnet_paper"
ORDER = ["errors", "arguments", "progress", "files", "recipe", "mesh", "operators", "problems", "stepping", "data", "plugins",
         "models", "scoring", "discovery", "projects", "training", "trust", "inverse", "following", "designs", "report", "export",
         "prediction", "studio", "cli"]
FORBIDDEN: dict[str, set[str]] = {}


def imported(path: Path) -> set[str]:
    """Parts of dgnet that a file imports, wherever in the file; relative imports count as their own folder's."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    parts = {name.split(".")[1] for name in found if name.startswith("dgnet.")}
    return parts & set(ORDER)


def roots(path: Path) -> set[str]:
    """Packages that a file imports, wherever in the file."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    return {a.name.split(".")[0] for n in nodes if isinstance(n, ast.Import) for a in n.names} | {
        n.module.split(".")[0] for n in nodes if isinstance(n, ast.ImportFrom) and n.module}


def files() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if p.parent != ROOT or p.stem in ORDER)


def test_the_library_does_not_know_the_paper() -> None:
    for path in [*ROOT.rglob("*.py")]:
        assert not [n for n in roots(path) if n in ("dgnet_paper", "benchmarks", "tests", "paper")], path


def test_the_truth_shares_no_operators_with_what_it_judges() -> None:
    for path in (PAPER / "reference").rglob("*.py"):
        assert not imported(path) & {"operators", "stepping", "models"}, path


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_upwards(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert own in ORDER, f"the folder {own} has no place in the order"
    for other in imported(path):
        assert ORDER.index(other) <= ORDER.index(own), f"{own} imports {other}, which comes after it"
        assert other not in FORBIDDEN.get(own, set()), f"{own} must not import {other}"


PUBLIC_ONLY = ["inverse", "following", "designs", "trust", "report", "export", "studio"]
"""Folders that import public names of other folders only: `from dgnet.stepping import ...`, never of a module inside."""


@pytest.mark.parametrize("path", [p for name in PUBLIC_ONLY for p in sorted((ROOT / name).rglob("*.py"))],
                         ids=lambda p: str(p.relative_to(ROOT)))
def test_folders_upstairs_import_public_names_only(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dgnet."):
            _, *parts = node.module.split(".")
            inside = len(parts) > 1 and parts[0] != own and not ROOT.joinpath(*parts).is_dir()
            assert not inside, f"{node.module} is a module inside of a folder: import from dgnet.{parts[0]}"


def test_the_check_sees_violations(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    lines = ["def f():", "    from dgnet.models import rollout", "    import dgnet.data.store", "    from dgnet import stepping"]
    file.write_text("\n".join(lines))
    assert imported(file) == {"models", "data", "stepping"}


# ---------------------------------------------------------------------- private names

OWN = {"self", "cls", "super"}


def foreign(tree: ast.Module) -> set[str]:
    """Private names that a module reads from other modules or their objects, but does not define itself."""
    owned = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    owned |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
              and isinstance(n.value, ast.Name) and n.value.id in OWN}
    owned |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    used = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and not (
        isinstance(n.value, ast.Name) and n.value.id in OWN)}
    inner = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("dgnet")]
    used |= {alias.name for n in inner for alias in n.names}
    return {name for name in used - owned if name.startswith("_") and not name.startswith("__") and name not in FOREIGN}


FOREIGN = {"_version", "_replace", "_asdict", "_parameters", "_buffers"}  # of torch and the standard library


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_private_names_stay_at_home(path: Path) -> None:
    assert foreign(ast.parse(path.read_text())) == set()


# ---------------------------------------------------------------------- sizes

CEILINGS = {
    "src/dgnet/cli": 780, "src/dgnet/data": 730, "src/dgnet/designs": 920, "src/dgnet/discovery": 1280, "src/dgnet/export": 1150,
    "src/dgnet/following": 1220, "src/dgnet/inverse": 2420, "src/dgnet/mesh": 890, "src/dgnet/models": 4060,
    "src/dgnet/operators": 720, "src/dgnet/prediction": 780, "src/dgnet/problems": 2310, "src/dgnet/projects": 2640,
    "src/dgnet/report": 1660, "src/dgnet/scoring": 330, "src/dgnet/stepping": 2750, "src/dgnet/studio": 910,
    "src/dgnet/training": 1480, "src/dgnet/trust": 640, "paper/dgnet_paper/analyse": 490, "paper/dgnet_paper/baselines": 1340,
    "paper/dgnet_paper/cli": 380, "paper/dgnet_paper/demo": 250, "paper/dgnet_paper/model": 290,
    "paper/dgnet_paper/reference": 1510, "paper/dgnet_paper/scenarios": 1390, "paper/dgnet_paper/study": 3550,
    "paper/dgnet_paper/universal": 1000,
}
"""Statements of each folder, at most: what it has and a little. One that needs more says what it replaces."""


def statements(folder: Path) -> int:
    return sum(isinstance(n, ast.stmt) for path in folder.rglob("*.py") for n in ast.walk(ast.parse(path.read_text())))


@pytest.mark.parametrize("folder", CEILINGS)
def test_no_folder_outgrows_its_ceiling(folder: str) -> None:
    assert statements(ROOT.parents[1] / folder) <= CEILINGS[folder]


def test_every_folder_has_a_ceiling() -> None:
    found = {p.relative_to(ROOT.parents[1]).as_posix() for place in (ROOT, PAPER) for p in place.iterdir() if any(p.rglob("*.py"))}
    assert {name for name in found if not name.endswith(".py")} == set(CEILINGS)
