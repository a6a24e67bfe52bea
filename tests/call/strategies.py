"""Random values for property tests of calls."""

from hypothesis import strategies as st

from abate.schedule.backoff import Backoff


@st.composite
def backoffs(draw):
    base = draw(st.floats(0.0, 5.0))
    return Backoff(
        base,
        base + draw(st.floats(0.0, 60.0)),
        draw(st.floats(1.0, 4.0)),
        draw(st.sampled_from(["full", "equal", "decorrelated", "none"])),
    )
