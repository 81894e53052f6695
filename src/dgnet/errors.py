"""The one exception that a person is meant to read."""


class InputError(ValueError):
    """Bad input: one sentence that names the culprit. The command line prints it and exits with code 2.

        >>> import dgnet as dg
        >>> try:
        ...     dg.box((0, 3))
        ... except dg.InputError as error:
        ...     print(error)
        a box needs two or three positive cell counts, got [0, 3]
    """


LARGEST = 1e30
"""Numbers beyond it, and sizes below its inverse, are refused where they enter: their squares would overflow."""


class RangeError(InputError):
    """A state has left the table of a material."""


class NoRoom(InputError):
    """A disk that is full, read-only or beyond its quota: nothing more can be written, whatever comes next."""


class SolveError(RuntimeError):
    """A linear solve missed its tolerance, or a rollout grows without bound: a wrong answer must not look like a right one.

        >>> import dgnet as dg
        >>> issubclass(dg.SolveError, RuntimeError)
        True
    """
