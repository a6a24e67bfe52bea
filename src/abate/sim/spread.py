"""Work that is spread over the machine's cores, and can be broken off at any moment.

Each process that helps has a pipe of its own, and gets one task at a time. Nothing is shared between them: no lock and
no queue that a process could hold when it is ended, and no thread that would have to be waited for. So whoever breaks
off, at whatever instant, ends them all and is done.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

Given = TypeVar("Given")
Task = TypeVar("Task")
Found = TypeVar("Found")


def spread(
    build: Callable[[Given], Callable[[Task], Found]], given: Given, tasks: Sequence[Task], jobs: int
) -> Iterator[Found]:
    """What the work finds for each task, as it comes; each process builds its work from what is `given`, once.

    An error of the work is raised here. Whoever closes the iterator ends the processes.

    >>> from functools import partial
    >>> sorted(spread(partial(partial, pow), 2, [1, 2, 3], jobs=2))
    [2, 4, 8]
    """
    left = list(reversed(tasks))
    helpers: dict[Connection, Process] = {}
    try:
        for _ in range(min(jobs, len(tasks))):
            pipe = _start(build, given, helpers)
            pipe.send(left.pop())
        busy = set(helpers)
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                yield _answer(ready, helpers[ready])
                if left:
                    ready.send(left.pop())
                else:
                    busy.remove(ready)
    finally:
        # a run may take minutes, and nobody waits for it any more; one that waits for a task has nothing to lose
        for process in helpers.values():
            process.kill()
        for pipe, process in helpers.items():
            process.join()
            pipe.close()


def _start(
    build: Callable[[Any], Callable[[Any], Any]], given: object, helpers: dict[Connection, Process]
) -> Connection:
    with _undisturbed():
        ours, theirs = Pipe()
        process = Process(target=_help, args=(ours, theirs, build, given), daemon=True)
        process.start()
        theirs.close()  # so that a process which dies is seen
        helpers[ours] = process
    return ours


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No Ctrl-C between the start of a process and its being known, nor in one that does not ignore it yet."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _help(theirs: Connection, ours: Connection, build: Callable[[Any], Callable[[Any], Any]], given: object) -> None:
    """In a process that helps: it is the parent that is broken off, and once that is gone, there is nothing to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    theirs.close()
    work = build(given)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task = ours.recv()
            answer: tuple[Any, Exception | None]
            try:
                answer = work(task), None
            except Exception as error:  # it is raised where it is waited for
                answer = None, error
            ours.send(answer)


def _answer(pipe: Connection, process: Process) -> Any:
    try:
        found, error = pipe.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        raise RuntimeError(f"a process that helped has ended with exit code {process.exitcode}") from None
    if error is not None:
        raise error
    return found
