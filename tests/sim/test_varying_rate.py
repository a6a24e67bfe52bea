"""Rates that change at known instants: what is done by when."""

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate.sim.varying_rate import VaryingRate

# sums and products of these are exact, so that instants can be compared
QUARTERS = st.integers(0, 80).map(lambda number: number / 4)
AMOUNTS = st.integers(1, 200).map(lambda number: number / 4)
SPANS = st.lists(
    st.tuples(QUARTERS, AMOUNTS, st.sampled_from([0.0, 0.25, 0.5, 2.0, 4.0])).map(
        lambda span: (span[0], span[0] + span[1], span[2])
    ),
    max_size=4,
)


def rate_at(spans, usual, now):
    rate = usual
    for start, end, factor in spans:
        rate *= factor if start <= now < end else 1.0
    return rate


def done(spans, usual, start, end):
    """What is done from one instant to another."""
    inner = {edge for span in spans for edge in span[:2] if start < edge < end}
    return sum(rate_at(spans, usual, one) * (other - one) for one, other in pairwise(sorted({start, end} | inner)))


@given(spans=SPANS, usual=st.sampled_from([0.5, 1.0, 2.0]), now=QUARTERS, amount=AMOUNTS)
def test_after_is_the_first_instant_by_which_so_much_is_done(spans, usual, now, amount):
    """Not a moment later: what is done at the edge of a stall does not wait for its end."""
    end = VaryingRate(usual, spans).after(now, amount)
    assert done(spans, usual, now, end) == amount
    assert done(spans, usual, now, end - 2**-20) < amount


@given(spans=SPANS, usual=st.sampled_from([0.5, 1.0, 2.0]), now=QUARTERS, one=AMOUNTS, other=AMOUNTS)
def test_work_may_be_done_in_parts(spans, usual, now, one, other):
    """One after the other takes as long as both at once."""
    pace = VaryingRate(usual, spans)
    assert pace.after(pace.after(now, one), other) == pace.after(now, one + other)


@given(spans=SPANS, usual=st.sampled_from([0.0, 1.0, 2.0]), now=QUARTERS)
def test_the_rate_at_an_instant_is_that_of_all_spans_around_it(spans, usual, now):
    """They begin at their first instant, and are over at their last."""
    assert VaryingRate(usual, spans).at(now) == rate_at(spans, usual, now)


@pytest.mark.parametrize(
    ("now", "amount", "end"),
    [
        (9.0, 1.0, 10.0),  # just done
        (9.0, 1.25, 20.25),
        (10.0, 0.0, 20.0),  # even no work takes until a worker is free
        (15.0, 1.0, 21.0),
        (20.0, 0.0, 20.0),
        (30.0, 1.0, 31.0),
    ],
)
def test_a_stall_holds_up_what_is_not_done(now, amount, end):
    """From 10 to 20 s."""
    assert VaryingRate(1.0, [(10.0, 20.0, 0.0)]).after(now, amount) == end


def test_what_never_goes_on_is_never_done():
    """A rate of 0, for good."""
    assert VaryingRate(0.0).after(1.0, 1.0) == inf
    assert VaryingRate(0.0, [(10.0, 20.0, 2.0)]).after(1.0, 1.0) == inf
    assert VaryingRate(1.0, [(10.0, inf, 0.0)]).after(9.5, 1.0) == inf


def test_a_pace_that_never_changes_is_steady():
    """A factor of 1 changes nothing."""
    assert VaryingRate(3.0).steady
    assert VaryingRate(3.0, [(1.0, 2.0, 1.0)]).steady
    assert not VaryingRate(3.0, [(1.0, 2.0, 0.5)]).steady
