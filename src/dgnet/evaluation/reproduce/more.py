"""The other kinds of cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

RUNNERS: dict[str, Callable[[Any, Any], dict[str, Any]]] = {}
