"""For the tests of the Prometheus sink."""

import itertools

import pytest

from tests.observe.watching import Watched

numbers = itertools.count()


@pytest.fixture
def watched():
    """A sink that is installed."""
    with Watched() as watched:
        yield watched


@pytest.fixture
def name():
    """A name that no other test uses."""
    return f"name-of-test-{next(numbers)}"
