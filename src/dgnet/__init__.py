"""dgnet: discrete Green networks for time-dependent PDEs on unstructured meshes.

`import dgnet as dg` offers what most programs need, by the names in `__init__.pyi`; docs/api/index.md lists them. A name is
imported when it is first used, so that `import dgnet` itself takes no time. Everything else is in the folders and may move.
"""

from __future__ import annotations

import re
from importlib import import_module
from operator import attrgetter
from pathlib import Path

__version__ = "0.1.0"

_STUB = Path(__file__).with_suffix(".pyi").read_text()
_NAMES = {name: (home, name) for home, name in re.findall(r"^from (\S+) import (\w+) as \w+$", _STUB, re.MULTILINE)}
_FOLDERS = {name: home for home, name in re.findall(r"^import (\S+) as (\w+)$", _STUB, re.MULTILINE)}
for _name, _first, _rest in re.findall(r"^(\w+) = (\w+)\.(\w+)$", _STUB, re.MULTILINE):
    _NAMES[_name] = (_FOLDERS[_first], _rest) if _first in _FOLDERS else (_NAMES[_first][0], f"{_first}.{_rest}")
__all__ = sorted(_NAMES)


def __getattr__(name: str) -> object:
    if name not in _NAMES:
        raise AttributeError(f"module 'dgnet' has no attribute '{name}'")
    home, path = _NAMES[name]
    value: object = attrgetter(path)(import_module(home))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
