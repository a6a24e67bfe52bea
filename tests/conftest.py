"""For all tests."""

import os
import signal

from hypothesis import settings

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
