"""Create a SQLite file for its owner only, check its ownership, and notice when it is replaced while open.

A process that has a file open continues to read and write it after the path was deleted or replaced, and those writes
are lost. So the device and inode at the path are compared with those of the open file and of its write-ahead log. The
system does not reuse an inode number while the file is open.

No function here opens an existing file: closing any descriptor of a file releases all locks that the process has on it.

Ownership: messages may be secret, and workers act on them. So these are refused:

* a path through a symbolic link of another user;
* a file that another user has created in a directory that others can write to, such as /tmp or one shared by a group;
* a directory of another user except root, since its owner could replace the file at any time;
* a hard link in a world-writable directory, since another user can create it.

If several users share a store on purpose, ``shared=true`` in its URL allows files and directories of others.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from abate.stores.sqlite.schema import UnusableDatabase

PRIVATE = 0o600
BESIDE = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite keeps beside a database."""
MAX_LINKS = 40
Inode = tuple[int, int]
"""The device and the inode number of a file."""


class OpenFile(NamedTuple):
    """The file that a connection has open, and its write-ahead log."""

    path: str
    file: Inode
    log_path: str
    log: Inode | None


def describe_open_file(path: str, file: Inode) -> OpenFile:
    """Describe a file that was just opened."""
    log = wal_path(path)
    return OpenFile(path, file, log, inode(log))


def wal_path(path: str) -> str:
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
    """Create an empty file that only this user can read, whatever the umask; leave an existing file unchanged.

    SQLite gives the log and its index the mode of the file. Errors of the path are reported when SQLite opens it.
    """
    try:
        descriptor = os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE)
    except OSError:
        return
    try:
        if hasattr(os, "fchmod"):  # the umask may have removed the owner's rights too
            os.fchmod(descriptor, PRIVATE)
    finally:
        os.close(descriptor)


def check_links(path: str) -> None:
    """Refuse a path that leads through a symbolic link of another user."""
    if not hasattr(os, "geteuid"):  # a system without numeric owners
        return
    for link, found in _links(path):
        if found.st_uid not in (os.geteuid(), 0):
            raise UnusableDatabase(
                f"is reached through {link}, a symbolic link of another user ({found.st_uid}): {EXPECTED}"
            )


def check_owners(path: str, shared: bool) -> None:
    """Refuse a file that another user has created or could replace; `shared` allows files of others."""
    if not hasattr(os, "geteuid"):
        return
    ours, real = {os.geteuid(), 0}, os.path.realpath(path)
    found = [(real + end, _status(real + end)) for end in ("", *BESIDE)]
    files = [(name, status) for name, status in found if status is not None]
    for name, status in files:
        if not stat.S_ISREG(status.st_mode):
            raise UnusableDatabase(f"can't be used: {name} is not a regular file")
    folder = os.path.dirname(real)
    around = os.stat(folder)
    everybody = around.st_mode & stat.S_IWOTH
    # only root uses a directory of another user: to inspect a store that others share there
    group = around.st_mode & stat.S_IWGRP and around.st_uid in ours
    if shared:
        return
    if everybody and not around.st_mode & stat.S_ISVTX:
        raise UnusableDatabase(
            f"lies in {folder}, where every user may replace it: {EXPECTED}, or shared=true in the URL"
        )
    if around.st_uid not in ours and os.geteuid() != 0:
        raise UnusableDatabase(
            f"lies in {folder}, a directory of another user ({around.st_uid}): {EXPECTED}, or shared=true in the URL"
        )
    for name, status in files:
        if (everybody or group) and status.st_uid not in ours:
            raise UnusableDatabase(
                f"can't be used: {name} was put into {folder} by another user ({status.st_uid}): {EXPECTED}, or "
                "shared=true in the URL"
            )
        if everybody and status.st_nlink > 1:
            raise UnusableDatabase(f"can't be used: {name} is a hard link to a file with another name: {EXPECTED}")


def _links(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each symbolic link in a path, up to the first part that does not exist."""
    at, left, links = os.sep, path.split(os.sep)[::-1], 0
    while left:
        part = left.pop()
        if part in ("", os.curdir):
            continue
        if part == os.pardir:
            at = os.path.dirname(at)
            continue
        step = os.path.join(at, part)
        found = _status(step)
        if found is None:
            return
        if not stat.S_ISLNK(found.st_mode):
            at = step
            continue
        yield step, found
        links += 1
        if links > MAX_LINKS:
            raise UnusableDatabase(f"is reached through more than {MAX_LINKS} symbolic links")
        target = os.readlink(step)
        at = os.sep if os.path.isabs(target) else at
        left += target.split(os.sep)[::-1]


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


EXPECTED = "expected a file and a directory that belong to this user"


def open_inodes() -> set[Inode]:
    """Return the files that this process has open; an empty set if the system does not list them."""
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
