"""What foreign text costs: time in proportion to its length."""

import time

GROWTH = 8
"""How much longer the second text is."""
MAX_GROWTH = 5 * GROWTH
"""The growth of the time that is allowed: a busy machine disturbs what is measured, and squares are far off."""


def assert_in_proportion(work, length, least=0.0005):
    """Let `work(length)` take at most `MAX_GROWTH` times as long for `GROWTH` times the length.

    Times below `least` seconds count as that.
    """

    def took(length):
        began = time.process_time()
        work(length)
        return time.process_time() - began

    took(length)
    short = min(took(length) for _ in range(3))
    assert min(took(GROWTH * length) for _ in range(2)) < MAX_GROWTH * max(short, least)
