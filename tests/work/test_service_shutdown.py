"""SIGTERM ends a real process within its grace, whatever hangs in it."""

import os
import signal
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
