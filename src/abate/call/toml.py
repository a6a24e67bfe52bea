"""TOML as it comes from outside: read within bounds, and every mistake is a `ValueError` that names the file.

A file is configuration, and may be written by somebody who may not write code. So its size and its depth are bounded
before anything is made of it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from abate.redact import quoted

if TYPE_CHECKING:
    from pathlib import Path

LARGEST = 1_048_576
"""Bytes of a file."""
DEEPEST = 32
"""Tables and lists within each other."""


def read(file: Path) -> dict[str, Any]:
    """The document in a file; `OSError` where it cannot be read.

    >>> import pathlib
    >>> read(pathlib.Path("no_such.toml"))
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory: 'no_such.toml'
    """
    name = quoted(str(file))
    with file.open("rb") as opened:
        data = opened.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"{name} must be of at most {LARGEST:,} bytes, and is larger")
    try:
        return parsed(data.decode("utf-8"))
    except TooDeep as error:
        raise ValueError(f"{name} {error}") from None
    except ValueError as error:
        raise ValueError(f"{name} is not TOML: {quoted(str(error))}") from error


@contextmanager
def legible() -> Generator[None]:
    """Write what is refused in the block on one line: names in a file may hold line ends and terminal sequences.

    >>> with legible():
    ...     raise ValueError("no service \\x1b[31mdb")
    Traceback (most recent call last):
    ValueError: no service \\x1b[31mdb
    """
    try:
        yield
    except ValueError as error:
        text = str(error)
        if text.isprintable():
            raise
        raise ValueError(quoted(text)) from error


def parsed(text: str) -> dict[str, Any]:
    """The document in a text.

    >>> parsed("a.b = [1, 2]")
    {'a': {'b': [1, 2]}}
    >>> parsed("a = " + 50 * "[" + 50 * "]")
    Traceback (most recent call last):
    abate.call.toml.TooDeep: must have at most 32 tables and lists within each other, and has more
    """
    import tomllib

    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise TooDeep from None
    level: list[Any] = [document]
    for _ in range(DEEPEST + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return document
    raise TooDeep


class TooDeep(ValueError):
    """The document is nested too deeply."""

    def __init__(self) -> None:
        super().__init__(f"must have at most {DEEPEST} tables and lists within each other, and has more")


def _inside(outer: Any) -> list[Any]:
    """The tables and lists in a table or a list."""
    values = outer.values() if isinstance(outer, dict) else outer
    return [value for value in values if isinstance(value, (dict, list))]
