"""Nothing that hangs outlasts the grace: real processes, a real SIGTERM."""

import os
import signal
import time
import warnings

import pytest

from tests.work.hanging_services import CASES, FINAL_SETTLE_TIMEOUT, GRACE, run

SLACK = 5.0
"""Seconds by which a busy machine may be late; what hangs does so for an hour."""


def forked(case):
    """A child in which something hangs, and what it says."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads: those of tests before
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
def test_a_run_returns_when_the_grace_is_over_whatever_hangs(case):
    """The grace, and the last words after it."""
    child, said = forked(case)
    try:
        with said:
            assert said.readline() == "began\n"
            sent = time.monotonic()
            os.kill(child, signal.SIGTERM)
            assert said.readline() == "returned\n"
            assert time.monotonic() - sent < GRACE + FINAL_SETTLE_TIMEOUT + SLACK
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
