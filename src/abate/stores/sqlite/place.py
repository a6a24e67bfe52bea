"""Where a SQLite file lies: made for its owner alone, and noticed when it is deleted or replaced while it is open.

A process that has a file open goes on reading and writing it after its path leads elsewhere, and what it writes there
is lost. So the device and inode that the path leads to are compared with those of the open file, and those of its
write-ahead log. An inode number is not given to another file as long as the file is open.

Nothing here opens a file that exists: closing any descriptor of a file drops all locks that the process has on it.
"""

from __future__ import annotations

import os
from typing import NamedTuple

PRIVATE = 0o600
Inode = tuple[int, int]
"""The device of a file, and its number there."""


class Place(NamedTuple):
    """The file that a connection has open, and its write-ahead log."""

    path: str
    file: Inode
    log_path: str
    log: Inode | None


def opened(path: str, file: Inode) -> Place:
    """Return the place of a file that was opened just now."""
    log = log_of(path)
    return Place(path, file, log, inode(log))


def log_of(path: str) -> str:
    """Return the path of the write-ahead log: beside the file that a symbolic link leads to."""
    return os.path.realpath(path) + "-wal"


def inode(path: str) -> Inode | None:
    """Return the identity of the file that a path leads to; None if there is no file."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def create(path: str) -> None:
    """Make an empty file that only this user can read, whatever the umask; leave a file that exists as it is.

    SQLite gives the log and its index the mode of the file. What is wrong with the path is said when SQLite opens it.
    """
    try:
        descriptor = os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE)
    except OSError:
        return
    try:
        if hasattr(os, "fchmod"):  # the umask may have taken away even the owner's rights
            os.fchmod(descriptor, PRIVATE)
    finally:
        os.close(descriptor)


def descriptors() -> set[Inode]:
    """Return the files that this process has descriptors of; none where the system does not list them."""
    found: set[Inode] = set()
    try:
        numbers = os.listdir("/dev/fd")
    except OSError:
        return found
    for number in numbers:
        try:
            status = os.fstat(int(number))
        except (OSError, ValueError):
            continue
        found.add((status.st_dev, status.st_ino))
    return found
