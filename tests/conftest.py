"""For all tests."""

import os

from hypothesis import settings

# how long an example takes is the machine's business: a timed assertion is a flaky test
settings.register_profile("untimed", deadline=None)
if settings.get_current_profile_name() == "default":
    settings.load_profile("untimed")


def pytest_configure(config):
    """A process that runs tests is measured from its first import, as this variable asks; what tests start is not."""
    if not config.getoption("numprocesses", None):  # this one runs tests itself, and starts no others to do so
        os.environ.pop("COVERAGE_PROCESS_START", None)
