"""Every store beside one slow and obvious model."""

import itertools

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conformance.conftest import STORES
from tests.conformance.model import BesideTheModel


@pytest.mark.parametrize("kind", STORES)
def test_a_queue_answers_as_the_model_does(kind, tmp_path):
    """Whatever is done to it, in whatever order."""
    numbers = itertools.count()

    def fresh_url():
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        return STORES[kind](folder)

    machine = type("Machine", (BesideTheModel,), {"fresh_url": staticmethod(fresh_url)})
    run_state_machine_as_test(machine, settings=settings(max_examples=150, stateful_step_count=40, deadline=None))
