"""How work that takes long says how far it is."""

from collections.abc import Callable

Report = Callable[[str, int, int], None]
"""`report(what, done, total)`: called now and then, with what is being done and how many of its parts are done."""
