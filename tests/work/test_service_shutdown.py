"""SIGTERM ends a real process within its grace, whatever hangs in it."""

import os
import signal
import subprocess
import sys
import time
import warnings

import pytest

from tests.work.hanging_services import CASES, FINAL_SETTLE_TIMEOUT, GRACE, run

SLACK = 5.0
"""Seconds of delay allowed on a busy machine; the hanging parts hang for an hour."""


def fork_service(case):
    """Fork a child in which one part hangs; return its process ID and the pipe it reports on."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of earlier tests may still run
        child = os.fork()
    if not child:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            run(case, write)
        finally:
            os._exit(0)
    os.close(write)
    return child, os.fdopen(read)


@pytest.mark.parametrize("case", CASES)
def test_run_returns_after_the_grace_whatever_hangs(case):
    """Run returns within the grace plus the timeout of the final settle."""
    child, report = fork_service(case)
    try:
        with report:
            assert report.readline() == "began\n"
            sent = time.monotonic()
            os.kill(child, signal.SIGTERM)
            assert report.readline() == "returned\n"
            assert time.monotonic() - sent < GRACE + FINAL_SETTLE_TIMEOUT + SLACK
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


FORKING = """
import abate, multiprocessing, os, signal, sys
fork = multiprocessing.get_context("fork")
store = abate.open_store("memory:")
@abate.consumer(source=store.queue("jobs"), workers=1)
def job(message):
    ready, told = fork.Event(), fork.Event()
    child = fork.Process(target=lambda: (ready.set(), told.wait(60)))
    child.start()
    assert ready.wait(60)
    os.kill(child.pid, getattr(signal, message.body))
    child.join(60)
    print(message.body, child.exitcode, flush=True)
    child.kill()
for name in ("SIGTERM", "SIGINT"):
    store.queue("jobs").send(name)
print(dict(job.run(drain=True)), job.health().live, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""


def test_a_signal_for_a_process_that_a_handler_has_forked_is_that_process_s():
    """It ends the child, as without a service around it, and does not stop the service."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING], capture_output=True, text=True, timeout=150, check=False
    )
    assert ended.stdout.splitlines() == ["SIGTERM -15", "SIGINT 1", "{'done': 2} False True"], ended.stderr[-2000:]
