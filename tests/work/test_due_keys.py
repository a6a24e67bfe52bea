"""Delayed keys, compared with a list that is sorted each time."""

import doctest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abate.work import due_keys
from abate.work.due_keys import PAGE, DueKeys

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from([0.0, 1.0, 1.0, 2.0, 3.0, 5.0, 8.0])),
        st.tuples(st.just("remove"), st.integers(0, 99)),
        st.tuples(st.just("pop"), st.sampled_from([0.0, 1.0, 1.5, 3.0, 9.0])),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=200)
@given(steps=STEPS, page=st.sampled_from([2, 3, 8]))
def test_due_keys_are_popped_in_order(steps, page):
    """Keys come by instant, then by insertion; removed keys do not come; no page is empty or too long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(due_keys, "PAGE", page)
        table, entries = DueKeys(), []
        for order, (step, value) in enumerate(steps):
            if step == "add":
                due = (value, order, object(), 0)  # keys that can't be compared
                table.add(due)
                entries.append(due)
            elif step == "remove" and entries:
                table.remove(entries.pop(value % len(entries)))
            elif step == "pop":
                expected = sorted((due for due in entries if due[0] <= value), key=lambda due: due[:2])
                assert table.pop(value) == expected
                entries = [due for due in entries if due[0] > value]
            assert len(table) == len(entries)
            assert table.first() == min((due[0] for due in entries), default=None)
            assert all(0 < len(entries_of_page) <= page for entries_of_page in table._pages)


def test_a_full_page_is_split():
    """Inserting a key moves no more entries than a page holds."""
    table = DueKeys()
    for n in range(10 * PAGE):
        table.add((float(n * 7919 % 5003), n, n, 0))
    assert len(table._pages) >= 10
    assert [due[0] for due in table.pop(5003.0)] == sorted(float(n * 7919 % 5003) for n in range(10 * PAGE))
    assert (len(table), table.first()) == (0, None)


def test_clear_removes_all_keys():
    """After clear nothing is due."""
    table = DueKeys()
    table.add((1.0, 0, "a", 0))
    table.clear()
    assert (len(table), table.first(), table.pop(2.0)) == (0, None, [])


def test_the_docstring_examples_run():
    """The module's doctests pass."""
    assert doctest.testmod(due_keys).failed == 0
