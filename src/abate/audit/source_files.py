"""Finds the Python files under a path and parses them. What can't be read is skipped, with the reason."""

from __future__ import annotations

import ast
import os
import re
import stat
import warnings
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from abate.frozen import Frozen

MAX_BYTES = 4_000_000
"""A larger file is skipped: it is generated, and parsing takes about 100 times its size in memory."""
MAX_DEPTH = 100
"""Folders below each other that are searched."""
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist"})
"""Besides hidden folders, and any folder with a ``pyvenv.cfg``."""
TEST_FOLDERS = frozenset({"tests", "test", "testing"})
TEST_FILE = re.compile(r"test_.*|.*_test|conftest|tests")
LINE_END = re.compile(r"\r\n|\r|\n")
"""What Python takes for the end of a line; `str.splitlines` splits at form feeds too."""
ENCODING = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")


class SourceFile(Frozen):
    """A file that was parsed."""

    path: Path
    shown: str
    """The path as it is shown: relative to the working directory, if it is below it."""
    lines: Sequence[str]
    tree: ast.Module


class Skipped(Frozen):
    """A file that was not audited, and why."""

    shown: str
    reason: str
    line: int = 1


class Candidates:
    """The Python files under the given paths."""

    def __init__(self, paths: Sequence[Path], exclude: Sequence[str] = (), tests: bool = False) -> None:
        self.files: list[Path] = []
        self.skipped: list[Skipped] = []
        self.tests = 0
        """Files that were left out because they are tests."""
        self._exclude, self._with_tests = exclude, tests
        seen: set[Path] = set()
        for path in paths:
            for file in [path] if path.is_file() else self._search(path, path, 0):
                if (real := file.absolute()) not in seen:
                    seen.add(real)
                    self.files.append(file)

    def _search(self, root: Path, folder: Path, depth: int) -> Iterator[Path]:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError as error:
            self.skipped.append(Skipped(shown(folder), f"the folder can't be read: {error.strerror}"))
            return
        if any(entry.name == "pyvenv.cfg" for entry in entries):
            return
        for entry in entries:
            path = Path(entry.path)
            if self._excluded(path.relative_to(root).as_posix()):
                continue
            # links are not followed: what they lead to is audited where it lies, and they may form a loop
            if entry.is_dir(follow_symlinks=False):
                if entry.name in SKIPPED_FOLDERS or entry.name.startswith("."):
                    continue
                if depth == MAX_DEPTH:
                    self.skipped.append(Skipped(shown(path), f"lies more than {MAX_DEPTH} folders deep"))
                elif entry.name in TEST_FOLDERS and not self._with_tests:
                    self.tests += sum(name.endswith(".py") for _, _, names in os.walk(path) for name in names)
                else:
                    yield from self._search(root, path, depth + 1)
            elif entry.name.endswith(".py"):
                if TEST_FILE.fullmatch(path.stem) and not self._with_tests:
                    self.tests += 1
                else:
                    yield path

    def _excluded(self, relative: str) -> bool:
        return any(fnmatchcase(relative, glob) or fnmatchcase(relative, f"{glob}/*") for glob in self._exclude)


def shown(path: Path) -> str:
    """Return a path relative to the working directory, if it is below it."""
    try:
        return path.absolute().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()


def read(path: Path) -> SourceFile | Skipped:
    """Parse a file, or say why that is impossible."""
    name = shown(path)
    try:
        data = _content(path)
        encoding = _encoding(data)
        text = data.decode(encoding)
        tree = _parsed(text)
    except OSError as error:
        return Skipped(name, f"can't be read: {error.strerror}")
    except _NotAudited as reason:
        return Skipped(name, str(reason))
    except (UnicodeDecodeError, LookupError) as error:
        return Skipped(name, f"can't be decoded: {error}")
    except SyntaxError as error:
        return Skipped(name, f"is no valid Python: {error.msg}", error.lineno or 1)
    except (ValueError, RecursionError, MemoryError) as error:
        return Skipped(name, f"can't be parsed: {str(error) or 'nested too deeply'}")
    return SourceFile(path, name, _lines(text), tree)


def _lines(text: str) -> list[str]:
    lines = LINE_END.split(text)
    return lines[:-1] if not lines[-1] else lines


class _NotAudited(Exception):
    """The reason why a file is not audited."""


def _content(path: Path) -> bytes:
    # opening a FIFO would block until it has a writer
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _NotAudited("is not a regular file")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _NotAudited(f"has more than {MAX_BYTES:,} bytes")
    return data


def _encoding(data: bytes) -> str:
    """Return the encoding that the first two lines declare (PEP 263)."""
    if data.startswith(b"\xef\xbb\xbf"):
        return "utf-8-sig"
    for line in data.split(b"\n", 2)[:2]:
        if found := ENCODING.match(line):
            return found[1].decode("ascii")
    return "utf-8"


def _parsed(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in the audited code
        return ast.parse(text)
