"""For all tests."""

import os
import signal

import pytest
from hypothesis import settings

from abate import events

# how long an example takes is the machine's business: a timed assertion is a flaky test
settings.register_profile("untimed", deadline=None)
if settings.get_current_profile_name() == "default":
    settings.load_profile("untimed")


def pytest_configure(config):
    """A process that runs tests is measured from its first import, as this variable asks; what tests start is not."""
    if not config.getoption("numprocesses", None):  # this one runs tests itself, and starts no others to do so
        os.environ.pop("COVERAGE_PROCESS_START", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # the shell has started the tests in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what tests start and interrupt must not inherit that


@pytest.fixture(autouse=True)
def sinks_end_with_their_test():
    """Later tests of this process are not counted by what an earlier one has installed, or left to the collector."""
    before = list(events.sinks)
    yield
    for sink in list(events.sinks):
        if sink not in before:
            events.remove(sink)
