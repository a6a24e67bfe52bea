"""Reading and writing source files: encoding, line endings and mode are kept, and a file is replaced as a whole."""

from __future__ import annotations

import ast
import io
import os
import tempfile
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from abate.errors import AbateError

MAX_BYTES = 4_000_000
"""The largest file that is read: larger ones are data."""
SKIPPED = ("__pycache__", "node_modules", "site-packages", "venv")


@dataclass(frozen=True)
class SourceFile:
    """A file as it was read: its text with its own line endings, and its encoding."""

    path: Path
    text: str
    encoding: str

    def write(self, text: str) -> None:
        """Replace the file at once, with the same encoding and mode; a link stays a link to the file.

        Raises `AbateError` if it can't be written, or was changed since it was read.
        """
        try:
            self._replace(text)
        except (OSError, UnicodeError) as error:
            raise AbateError(f"{self.path} can't be written: {error}") from error

    def _replace(self, text: str) -> None:
        target = self.path.resolve()
        content = text.encode(self.encoding)
        if target.read_bytes() != self.text.encode(self.encoding):
            raise AbateError(f"{self.path} was changed while it was read: run the command again")
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with open(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, target.stat().st_mode & 0o7777)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise


def read(path: Path) -> SourceFile:
    """Read a source file. Raises `AbateError` if it can't be read as Python code."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise AbateError(f"{path} is larger than {MAX_BYTES:,} bytes")
        content = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return SourceFile(path, content.decode(encoding), encoding)
    except (OSError, SyntaxError, UnicodeError, LookupError) as error:
        raise AbateError(f"{path} can't be read: {error}") from error


def check_syntax(file: SourceFile) -> None:
    """Raise `AbateError` if a file is not valid Python."""
    try:
        compile(file.text, str(file.path), "exec", dont_inherit=True, flags=ast.PyCF_ONLY_AST)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise AbateError(f"{file.path} can't be parsed: {error}") from error


def python_files(path: Path) -> Iterator[Path]:
    """Yield the Python files of a folder, or the file itself; hidden folders and installed packages are left out.

    A file that has several names, as by links, is yielded once.

    >>> list(python_files(Path("no/such/folder")))
    Traceback (most recent call last):
    abate.errors.AbateError: there is no file or folder no/such/folder
    """
    if path.is_file():
        yield path
        return
    if not path.is_dir():
        raise AbateError(f"there is no file or folder {path}")
    seen: set[str] = set()
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(one for one in folders if not one.startswith(".") and one not in SKIPPED)
        for name in sorted(names):
            real = os.path.realpath(Path(folder, name))
            if name.endswith(".py") and real not in seen:
                seen.add(real)
                yield Path(folder, name)
