"""Run the tests that have just failed once more, alone: `python -m tests.rerun_failed`.

Tests of real servers, forks and browsers share two cores here, and one in ten thousand may fail only because of its
neighbours. Such a test is named and has to pass without them. More than a few failures are no accident: they stand.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

MAX_RERUN = 2


def failed(cache: Path = Path(".pytest_cache")) -> list[str]:
    """Return the tests that failed in the last run, as pytest's cache has them."""
    path = cache / "v/cache/lastfailed"
    return sorted(json.loads(path.read_text())) if path.exists() else []


def main() -> int:
    """Return the exit code of the tests that are run again, or 1 if there are too many or none."""
    tests = failed()
    if not 1 <= len(tests) <= MAX_RERUN:
        return 1
    print(f"\nfailed beside others, and run again alone: {', '.join(tests)}\n", flush=True)
    return int(pytest.main(tests))


if __name__ == "__main__":
    sys.exit(main())
