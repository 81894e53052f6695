"""Search for pages that are opened from disk, where browsers allow neither workers nor requests: the index becomes a script."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any


def on_post_build(config: Any, **_: Any) -> None:
    """A hook of mkdocs, after its plugin `search`: search.js takes the place of the plugin's own script."""
    folder = Path(config["site_dir"]) / "search"
    index = (folder / "search_index.json").read_text(encoding="utf-8")
    (folder / "index.js").write_text(f"const searchIndex = {index};\n", encoding="utf-8")
    shutil.copyfile(Path(__file__).parent / "search.js", folder / "main.js")
    for unused in ("search_index.json", "worker.js"):
        (folder / unused).unlink()
