"""TOML from outside: read within limits, and every mistake is a `ValueError` that names the file.

A configuration file may come from people who may not change code. So its size and depth are limited before it is
used.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from abate.redact import escaped

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 1_048_576
"""The largest file, in bytes."""
MAX_DEPTH = 32
"""The deepest nesting of tables and lists."""

_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_DEEP_KEY = rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_DEPTH}}}"
"""A dotted key that is nested too deeply: `tomllib` takes the square of its length, and its length again for each line
of its table. Not compiled here, as that takes longer than importing the module."""


def read(file: Path) -> dict[str, Any]:
    """Return the document in a file; raise `OSError` if it cannot be read.

    >>> import pathlib
    >>> read(pathlib.Path("no_such.toml"))
    Traceback (most recent call last):
    FileNotFoundError: [Errno 2] No such file or directory: 'no_such.toml'
    """
    name = escaped(str(file))
    with file.open("rb") as opened:
        data = opened.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{name} must be of at most {MAX_BYTES:,} bytes, and is larger")
    try:
        return parse(data.decode("utf-8"))
    except TooDeep as error:
        raise ValueError(f"{name} {error}") from None
    except ValueError as error:
        raise ValueError(f"{name} is not TOML: {escaped(str(error))}") from error


@contextmanager
def one_line_errors() -> Generator[None]:
    """Keep error messages of the block on one line: names in a file may contain line ends and terminal sequences.

    >>> with one_line_errors():
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
        raise ValueError(escaped(text)) from error


def parse(text: str) -> dict[str, Any]:
    """Return the document in a text.

    >>> parse("a.b = [1, 2]")
    {'a': {'b': [1, 2]}}
    >>> parse("a = " + 50 * "[" + 50 * "]")
    Traceback (most recent call last):
    abate.call.bounded_toml.TooDeep: must have at most 32 tables and lists within each other, and has more
    """
    import tomllib

    if re.search(_DEEP_KEY, text) is not None:
        raise TooDeep
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise TooDeep from None
    level: list[Any] = [document]
    for _ in range(MAX_DEPTH + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return document
    raise TooDeep


class TooDeep(ValueError):
    """Raised if the document is nested too deeply."""

    def __init__(self) -> None:
        super().__init__(f"must have at most {MAX_DEPTH} tables and lists within each other, and has more")


def _inside(outer: Any) -> list[Any]:
    """Yield the tables and lists in a table or a list."""
    values = outer.values() if isinstance(outer, dict) else outer
    return [value for value in values if isinstance(value, (dict, list))]
