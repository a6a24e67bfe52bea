"""Ratio and reserve of a budget in whole numbers: a ratio of 0.6 is 0.6, however many deposits there are."""

from __future__ import annotations

from math import lcm

MAX_DENOMINATOR = 10**6
"""Ratio and reserve are rounded to the nearest fraction with at most this denominator."""


class Units:
    """The unit in which a budget counts, 1/`one` of a retry; and what a deposit and the reserve are in it."""

    __slots__ = ("one", "per_deposit", "reserved")

    def __init__(self, one: int, per_deposit: int, reserved: int) -> None:
        self.one = one
        self.per_deposit = per_deposit
        self.reserved = reserved

    @classmethod
    def of(cls, ratio: float, reserved: float) -> Units:
        """Return the units nearest to these numbers, with denominators up to `MAX_DENOMINATOR`."""
        earned, per = _fraction(ratio)
        kept, share = _fraction(reserved)
        one = lcm(per, share)
        return cls(one, earned * (one // per), kept * (one // share))

    def balance(self, deposits: int, withdrawals: int) -> int:
        """Return what is left, in units."""
        return self.reserved + self.per_deposit * deposits - self.one * withdrawals


def _fraction(value: float) -> tuple[int, int]:
    """Return the last convergent of `value` with a denominator up to `MAX_DENOMINATOR`: 0.29 is exactly 29/100."""
    numerator, denominator = value.as_integer_ratio()
    before, last = (0, 1), (1, 0)
    while denominator:
        whole = numerator // denominator
        following = (before[0] + whole * last[0], before[1] + whole * last[1])
        if following[1] > MAX_DENOMINATOR:
            break
        before, last = last, following
        numerator, denominator = denominator, numerator - whole * denominator
    return last
