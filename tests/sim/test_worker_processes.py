"""Work that is spread over processes: all of it is done, errors are passed on, and no process is left running."""

import os
import signal
import threading
import time
from multiprocessing import active_children

import pytest

from abate.sim.worker_processes import run_in_workers


def squares(offset):
    """Work that takes some time for some tasks."""

    def work(task):
        time.sleep(0.01 * (task % 3))
        return offset + task * task

    return work


def failing(_):
    """Work that fails at one task."""

    def work(task):
        if task == 3:
            raise KeyError("three")
        return task

    return work


def dying(_):
    """Work in which the process is killed, as by a machine without memory."""
    return lambda task: os.kill(os.getpid(), signal.SIGKILL)


def sleeping(_):
    """Work that does not end."""
    return lambda task: time.sleep(600)


@pytest.mark.parametrize("jobs", [1, 3, 50])
def test_every_task_is_done_once(jobs):
    """By however many processes; those that are not needed are not started."""
    assert sorted(run_in_workers(squares, 5, range(10), jobs)) == [5 + task * task for task in range(10)]
    assert not active_children()


def test_without_tasks_there_is_nothing():
    """And no process."""
    assert list(run_in_workers(squares, 0, [], 4)) == []


def test_an_error_is_raised_where_it_is_waited_for():
    """As it is; and the other processes are ended."""
    with pytest.raises(KeyError, match="three"):
        list(run_in_workers(failing, None, range(10), 2))
    assert not active_children()


def test_a_process_that_dies_is_named():
    """Waiting for it ends."""
    with pytest.raises(RuntimeError, match="a worker process has ended with exit code -9"):
        list(run_in_workers(dying, None, range(4), 2))
    assert not active_children()


def test_who_goes_away_ends_the_processes():
    """In the middle of it."""
    found = run_in_workers(squares, 0, range(1000), 3)
    next(found)
    assert len(active_children()) == 3
    found.close()
    assert not active_children()


@pytest.mark.parametrize("after", [0.003, 0.01, 0.05, 0.2])
def test_who_breaks_off_does_not_wait(after):
    """Whether processes are being started, or are at work."""
    began = time.monotonic()
    # to the main thread, as Ctrl-C goes there
    timer = threading.Timer(after, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        list(run_in_workers(sleeping, None, range(40), 20))
    timer.join()
    assert time.monotonic() - began < 10.0
    assert not active_children()
