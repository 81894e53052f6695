"""The one exception that a person is meant to read."""


class InputError(ValueError):
    """Bad input: one sentence that names the culprit. The command line prints it and exits with code 2."""


class NoRoom(InputError):
    """A disk that is full, read-only or beyond its quota: nothing more can be written, whatever comes next."""


class SolveError(RuntimeError):
    """A linear solve missed its tolerance. Never swallowed: a wrong answer must not look like a right one."""
