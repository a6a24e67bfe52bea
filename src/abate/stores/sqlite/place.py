"""Where a SQLite file lies: made for its owner alone, and noticed when it is deleted or replaced while it is open.

A process that has a file open goes on reading and writing it after its path leads elsewhere, and what it writes there
is lost. So the device and inode that the path leads to are compared with those of the open file, and those of its
write-ahead log. An inode number is not given to another file as long as the file is open.

Nothing here opens a file that exists: closing any descriptor of a file drops all locks that the process has on it.

Whose file it is: what waits in it may be secret, and is worked on. So no symbolic link of another user is followed, in
any part of the path; nothing is used that another user has put into a directory which others may write to, such as
/tmp or one that a group shares; and the directory belongs to this user or to root, or its owner could replace the file
at any time. A file in /tmp that has another name elsewhere is not used: it is a hard link, which another user can make.
Where several users share a store on purpose, ``shared=true`` in its URL allows files and directories of others.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from abate.stores.sqlite.schema import Foreign

PRIVATE = 0o600
BESIDE = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a file, by the end of its name."""
MOST_LINKS = 40
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


def check_links(path: str) -> None:
    """Refuse a path that leads through a symbolic link of another user."""
    if not hasattr(os, "geteuid"):  # owners are another matter there
        return
    for link, found in _links(path):
        if found.st_uid not in (os.geteuid(), 0):
            raise Foreign(f"is reached through {link}, a symbolic link of another user ({found.st_uid}): {EXPECTED}")


def check_owners(path: str, shared: bool) -> None:
    """Refuse a file that another user has put there, or could replace; `shared` allows what belongs to others."""
    if not hasattr(os, "geteuid"):
        return
    ours, real = {os.geteuid(), 0}, os.path.realpath(path)
    found = [(real + end, _status(real + end)) for end in ("", *BESIDE)]
    files = [(name, status) for name, status in found if status is not None]
    for name, status in files:
        if not stat.S_ISREG(status.st_mode):
            raise Foreign(f"can't be used: {name} is no regular file")
    folder = os.path.dirname(real)
    around = os.stat(folder)
    everybody = around.st_mode & stat.S_IWOTH
    # a directory of another user is used by root alone, who looks at what others share there
    group = around.st_mode & stat.S_IWGRP and around.st_uid in ours
    if shared:
        return
    if everybody and not around.st_mode & stat.S_ISVTX:
        raise Foreign(f"lies in {folder}, where everybody may replace it: {EXPECTED}, or shared=true in the URL")
    if around.st_uid not in ours and os.geteuid() != 0:
        raise Foreign(
            f"lies in {folder}, a directory of another user ({around.st_uid}): {EXPECTED}, or shared=true in the URL"
        )
    for name, status in files:
        if (everybody or group) and status.st_uid not in ours:
            raise Foreign(
                f"can't be used: {name} was put into {folder} by another user ({status.st_uid}): {EXPECTED}, or "
                "shared=true in the URL"
            )
        if everybody and status.st_nlink > 1:
            raise Foreign(f"can't be used: {name} is a hard link, to a file that has another name: {EXPECTED}")


def _links(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Each symbolic link on the way to a file, as far as the way goes."""
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
        if links > MOST_LINKS:
            raise Foreign(f"is reached through more than {MOST_LINKS} symbolic links")
        target = os.readlink(step)
        at = os.sep if os.path.isabs(target) else at
        left += target.split(os.sep)[::-1]


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


EXPECTED = "expected a file of one's own, in a directory of one's own"


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
