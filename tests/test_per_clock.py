"""State per clock: found again, kept apart, gone with its clock, mended in the child of a fork."""

import gc
import importlib.util
import os
import weakref
from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abate import forks, per_clock
from abate.clock import MACHINE
from abate.per_clock import PerClock
from abate.testing import VirtualClock


class Marks:
    """A state that knows its clock and what was done to it."""

    def __init__(self, clock):
        self.clock = clock
        self.count = 0
        self.mended = 0

    def after_fork(self):
        self.mended += 1


@settings(deadline=None)
@given(visits=st.lists(st.integers(0, 3)), own=st.booleans())
def test_each_clock_has_a_state_of_its_own(visits, own):
    """However contexts alternate, each finds what it left; a timeline with a clock of its own has one state only."""
    mine = VirtualClock()
    line = PerClock(Marks, mine if own else None)
    clocks = [None, *(VirtualClock() for _ in range(3))]
    expected = dict.fromkeys(clocks, 0)
    for visit in visits:
        with clocks[visit] or nullcontext():
            line.here().count += 1
        expected[None if own else clocks[visit]] += 1
    for clock in clocks:
        with clock or nullcontext():
            assert line.here().count == expected[None if own else clock]
            assert line.here().clock is (mine if own else clock or MACHINE)
    assert line.main.count == expected[None]
    assert line.follows_context is (not own)


def test_a_state_is_made_once_per_clock():
    """That of the machine's clock at once, that of a virtual one when it is first asked for."""
    made = []

    def make(clock):
        made.append(clock)
        return Marks(clock)

    line = PerClock(make, None)
    with VirtualClock() as clock:
        assert made == [MACHINE]
        for _ in range(3):
            line.here()
    line.here()
    assert made == [MACHINE, clock]


def test_clocks_nest():
    """The innermost clock rules, and the one around it rules again after that."""
    line = PerClock(Marks, None)
    outer, inner = VirtualClock(), VirtualClock()
    with outer:
        with inner:
            assert line.here().clock is inner
        assert line.here().clock is outer
    assert line.here().clock is MACHINE


def test_a_state_goes_with_its_clock():
    """A timeline that lives on keeps neither the virtual clocks it has met nor what it counted on them."""
    line = PerClock(Marks, None)
    with VirtualClock() as clock:
        state = weakref.ref(line.here())
    clock = weakref.ref(clock)
    gc.collect()
    assert clock() is None
    assert state() is None


def test_a_state_goes_with_its_timeline():
    """A clock that lives on keeps no state of timelines that are gone."""
    with VirtualClock() as clock:
        state = weakref.ref(PerClock(Marks, None).here())
        gc.collect()
        assert state() is None
    assert len(clock.states) == 0


def test_two_that_come_first_share_one_state():
    """Another thread makes a state for a clock while one is being made for it here: both get the other's."""
    others = []

    def make(clock):
        if clock is not MACHINE and not others:
            others.append(None)  # the other comes now, and is through before this one
            others[0] = line.here()
        return Marks(clock)

    line = PerClock(make, None)
    with VirtualClock():
        assert line.here() is others[0]
        assert line.here() is others[0]


@pytest.mark.parametrize("wrong", [5, "now", object(), VirtualClock])
def test_what_is_no_clock_is_refused(wrong):
    """A clock is an object with now() and sleep(), or a function; a class that was not called is neither."""
    with pytest.raises(TypeError, match="clock must have now"):
        PerClock(Marks, wrong)


def test_a_function_that_tells_the_time_is_a_clock():
    """Its readings are the time of the one state."""
    line = PerClock(Marks, lambda: 42.0)
    with VirtualClock():
        assert line.here().clock.now() == 42.0


def test_every_state_is_mended_in_a_child(in_child):
    """Of each clock, once per fork, and not in the parent."""
    line = PerClock(Marks, None)
    with VirtualClock():
        virtual = line.here()
    assert in_child(lambda: (line.main.mended, virtual.mended)) == (1, 1)
    assert in_child(lambda: in_child(lambda: (line.main.mended, virtual.mended))) == (2, 2)
    assert line.main.mended == virtual.mended == 0


def test_where_there_is_no_fork_there_is_nothing_to_register_for(monkeypatch):
    """The module loads without `os.register_at_fork`, which not every system has."""
    monkeypatch.delattr(os, "register_at_fork")
    again = importlib.util.module_from_spec(per_clock.__spec__)
    per_clock.__spec__.loader.exec_module(again)
    assert again.PerClock(Marks, None).here().clock is MACHINE


def test_a_state_that_is_gone_is_not_mended():
    """Being kept through forks keeps nothing alive."""
    line = PerClock(Marks, None)
    left = Marks(MACHINE)
    forks.register(left)
    left = weakref.ref(left)
    gc.collect()
    assert left() is None
    forks._in_child()
    assert line.main.mended == 1
