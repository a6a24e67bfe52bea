"""Counts of a fleet run, in batches."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from abate.sim.fleet.recorder import count_in_slots


@given(st.lists(st.floats(0.0, 9.99), max_size=30), st.sampled_from([0.0, 1e-9]))
def test_each_instant_counts_in_its_slot(instants, edge):
    """A batch within one slot and one over many give the counts of its instants; the last instant is returned."""
    series, alone = np.ones(200, np.int64), np.ones(200, np.int64)
    for instant in instants:
        alone[int(instant * 10 + edge)] += 1
    assert count_in_slots(series, np.array(instants), 10, edge) == max(instants, default=0.0)
    assert (series == alone).all()
