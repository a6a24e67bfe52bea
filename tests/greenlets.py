"""Tests that need greenlet: skipped on a free-threaded Python that it crashes.

SQLAlchemy for asyncio and playwright switch greenlets. greenlet 3.5 imports on Python 3.14t, and its first switch is a
segmentation fault, which would end the process that runs the tests.
"""

import subprocess
import sys
import sysconfig
from functools import cache

import pytest

SWITCH = "import greenlet; greenlet.greenlet(int).switch()"
REASON = "greenlet crashes this free-threaded Python"


@cache
def crashes():
    """Return whether greenlet crashes this Python; only free-threaded ones are tried."""
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return False
    return subprocess.run([sys.executable, "-c", SWITCH], capture_output=True, check=False).returncode < 0


needs_greenlet = pytest.mark.skipif(crashes(), reason=REASON)
