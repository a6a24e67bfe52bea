"""The pytest plugin: fixtures, found by pytest wherever abate is installed.

* `abate_clock`: the test runs in virtual time; the clock is its value.
* `abate_events`: a record of the events during the test.
* `abate_off`: calls make one attempt during the test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from abate.testing import Recorder, VirtualClock


@pytest.fixture
def abate_clock() -> Iterator[VirtualClock]:
    """Virtual time for this test: sleeping moves it."""
    from abate.testing import VirtualClock

    with VirtualClock() as clock:
        yield clock


@pytest.fixture
def abate_events() -> Iterator[Recorder]:
    """The events that happen during this test."""
    from abate.testing import Recorder

    with Recorder() as recorder:
        yield recorder


@pytest.fixture
def abate_off() -> Iterator[None]:
    """Retries are off during this test."""
    from abate.testing import off

    with off():
        yield
