"""Runs tasks in worker processes that can be ended at any moment.

Each process has a pipe of its own, and gets one task at a time. Processes share no lock or queue that could be held
when one is killed, and no thread has to be joined: an interrupt at any instant kills them all.
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


def run_in_workers(
    build: Callable[[Given], Callable[[Task], Found]], given: Given, tasks: Sequence[Task], jobs: int
) -> Iterator[Found]:
    """Yield the result of each task, in the order of completion; each process calls ``build(given)`` once.

    An error of a task is raised here. Closing the iterator ends the processes.

    >>> from functools import partial
    >>> sorted(run_in_workers(partial(partial, pow), 2, [1, 2, 3], jobs=2))
    [2, 4, 8]
    """
    left = list(reversed(tasks))
    workers: dict[Connection, Process] = {}
    try:
        for _ in range(min(jobs, len(tasks))):
            pipe = _start(build, given, workers)
            pipe.send(left.pop())
        busy = set(workers)
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                yield _answer(ready, workers[ready])
                if left:
                    ready.send(left.pop())
                else:
                    busy.remove(ready)
    finally:
        # kill: a task may take minutes, and its result is not needed
        for process in workers.values():
            process.kill()
        for pipe, process in workers.items():
            process.join()
            pipe.close()


def _start(
    build: Callable[[Any], Callable[[Any], Any]], given: object, workers: dict[Connection, Process]
) -> Connection:
    with _sigint_blocked():
        ours, theirs = Pipe()
        process = Process(target=_run_tasks, args=(ours, theirs, build, given), daemon=True)
        process.start()
        theirs.close()  # so that the end of a process is noticed
        workers[ours] = process
    return ours


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT until a started process is registered, and ignores SIGINT itself."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_tasks(
    theirs: Connection, ours: Connection, build: Callable[[Any], Callable[[Any], Any]], given: object
) -> None:
    """Run tasks in a worker process, until the parent ends. Only the parent handles SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    theirs.close()
    work = build(given)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task = ours.recv()
            answer: tuple[Any, Exception | None]
            try:
                answer = work(task), None
            except Exception as error:  # raised in the parent
                answer = None, error
            ours.send(answer)


def _answer(pipe: Connection, process: Process) -> Any:
    try:
        found, error = pipe.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        raise RuntimeError(f"a worker process has ended with exit code {process.exitcode}") from None
    if error is not None:
        raise error
    return found
