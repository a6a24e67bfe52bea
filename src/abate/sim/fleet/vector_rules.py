"""Vectorized forms of the production rules, for thousands of calls at once.

A property test holds each equal to its scalar rule, on the same uniforms. Where a rule can be tabulated, the rule
itself fills the table.

* `VectorBackoff`: a `Backoff` or a list of seconds, and the spread after a hint;
* `VectorBudget`: a `Budget`, in batches, with the results of one request after the other;
* `VectorRate`: a `VaryingRate`; `duration_sampler`: a `Duration`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from abate.admit.budget import Budget
from abate.admit.budget_units import Units
from abate.admit.sliding_window import SlidingWindow
from abate.schedule.backoff import Backoff, ListSchedule
from abate.schedule.hints import CAPPED_RETRY, ROOM, SPREAD
from abate.sim.model import Duration
from abate.sim.varying_rate import VaryingRate

Floats = NDArray[np.float64]
Whole = NDArray[np.intp]
Counts = NDArray[np.int32]
Mask = NDArray[np.bool_]


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the random stream of this name; the same seed gives the same numbers.

    >>> stream(1, "arrivals").random() == stream(1, "arrivals").random()
    True
    >>> stream(1, "arrivals").random() == stream(1, "service").random()
    False
    """
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(list(f"{seed}/{name}".encode()))))


class VectorBackoff:
    """A schedule for many calls at once; `retries` is the highest retry number it is asked for.

    >>> VectorBackoff(Backoff(1.0, 5.0, jitter="none"), retries=4).delay(np.array([1, 2, 3, 4]), np.zeros(4))
    array([1., 2., 4., 5.])
    """

    __slots__ = ("_base", "_cap", "_ceilings", "_far", "_jitter", "_minimum")

    def __init__(self, plan: Backoff | ListSchedule, retries: int) -> None:
        highest = max(1, min(retries, CAPPED_RETRY))
        self._far = plan.ceiling(CAPPED_RETRY)
        ceilings = [plan.ceiling(1)]
        while len(ceilings) < highest and (isinstance(plan, ListSchedule) or ceilings[-1] < self._far):
            ceilings.append(plan.ceiling(len(ceilings) + 1))
        self._ceilings = np.array(ceilings)
        self._jitter = plan.jitter if isinstance(plan, Backoff) else "none"
        self._base, self._cap, self._minimum = (
            (plan.start, plan.cap, plan.minimum) if isinstance(plan, Backoff) else (0.0, 0.0, 0.0)
        )

    def ceiling(self, retries: Whole | Counts) -> Floats:
        """Return the longest possible delay of each retry."""
        ceilings = self._ceilings
        if len(ceilings) == 1:
            return np.full(len(retries), ceilings[0])
        found: Floats = ceilings[np.minimum(retries, len(ceilings)) - 1]
        return found

    def delay(self, retries: Whole | Counts, uniforms: Floats, previous: Floats | None = None) -> Floats:
        """Return the seconds to wait before each retry; `previous` are the last delays, NaN for none."""
        if self._jitter == "decorrelated":
            base, last = self._base, np.full(len(retries), self._base)
            if previous is not None:
                last = np.where(np.isnan(previous), base, previous)
            return base + (np.maximum(base, np.minimum(self._cap, last * 3.0)) - base) * uniforms
        ceiling = self.ceiling(retries)
        if self._jitter == "full":
            return self._minimum + (ceiling - self._minimum) * uniforms
        if self._jitter == "equal":
            return np.maximum(self._minimum, ceiling * (0.5 + 0.5 * uniforms))
        return ceiling

    def delay_after_hint(
        self, hint: float, retries: Whole | Counts, own: Floats, left: Floats | float = np.inf
    ) -> Floats:
        """Return the hint plus each retry's own delay, spread over a share of the hint, and within the seconds `left`.

        >>> VectorBackoff(Backoff(1.0, 30.0), retries=3).delay_after_hint(10.0, np.array([1]), np.array([0.5]))
        array([13.35])
        """
        longest = own
        if self._jitter != "none":
            ceiling, spread = self.ceiling(retries), min(hint * SPREAD, self._far)
            wider = (spread > ceiling) & (ceiling > 0)
            stretched = np.minimum(own, ceiling) / np.where(wider, ceiling, 1.0) * spread
            longest = np.where(wider, spread, np.maximum(own, ceiling))
            own = np.where(wider, stretched, own)
        available = (left - hint) * (1.0 - ROOM)
        tight = (available > 0.0) & (available < longest)
        return hint + own * np.where(tight, available / np.where(tight, longest, 1.0), 1.0)


class VectorBudget:
    """A budget with deposits and withdrawals in batches, in the order of time.

    >>> purse = VectorBudget(Budget(ratio=0.5, reserve=0))
    >>> purse.deposit(5, now=0.0); purse.withdraw(4, now=0.0), purse.withdraw(1, now=0.0)
    (2, 0)
    """

    __slots__ = ("_deposits", "_terms", "_withdrawals", "by_request", "by_success", "unlimited")

    def __init__(self, budget: Budget) -> None:
        ratio, reserve, window, funded_by = budget.settings()
        self.unlimited = math.isinf(reserve)
        self.by_request = funded_by == "request" and ratio > 0.0 and not self.unlimited
        """Whether first attempts deposit."""
        self.by_success = funded_by == "success" and ratio > 0.0 and not self.unlimited
        """Whether successes deposit."""
        self._terms = Units.of(ratio, 0.0 if self.unlimited else reserve * window)
        self._deposits, self._withdrawals = SlidingWindow(window, 0.0), SlidingWindow(window, 0.0)

    def deposit(self, count: int, now: float) -> None:
        """Add this number of deposits."""
        self._deposits.roll(now)
        self._deposits.add(count)

    def withdraw(self, wanted: int, now: float) -> int:
        """Return how many of the wanted withdrawals are admitted."""
        if self.unlimited:
            return wanted
        self._deposits.roll(now)
        self._withdrawals.roll(now)
        balance = self._terms.balance(self._deposits.total, self._withdrawals.total)
        paid = min(wanted, max(0, balance // self._terms.one))
        self._withdrawals.add(paid)
        return paid


class VectorRate:
    """A varying rate for many instants at once.

    >>> rate = VectorRate.of(VaryingRate(1.0, [(10.0, 20.0, 0.5)]))
    >>> rate.after(np.array([5.0, 5.0, 0.0]), np.array([4.0, 6.0, 20.0]))
    array([ 9., 12., 25.])
    """

    __slots__ = ("_amounts", "_edges", "_rates", "_starts", "steady")

    def __init__(self, starts: list[float], rates: list[float]) -> None:
        """The rate is ``rates[n]`` from ``starts[n]`` on; the first start is minus infinity."""
        self.steady = all(rate == rates[0] for rate in rates)
        self._starts = np.array(starts[: len(rates)])
        self._rates = np.array(rates)
        self._edges = self._starts[1:] if len(rates) > 1 else np.zeros(1)
        self._amounts = np.concatenate([[0.0], np.cumsum(np.diff(self._edges) * self._rates[1:-1])])

    @classmethod
    def of(cls, pace: VaryingRate) -> VectorRate:
        """Return the vectorized form of a varying rate."""
        return cls(pace.starts, pace.rates)

    def done(self, instants: Floats) -> Floats:
        """Return the amounts done since the first change of the rate; negative before it."""
        if len(self._rates) == 1:
            steady: Floats = (instants - self._edges[0]) * self._rates[0]
            return steady
        place = np.searchsorted(self._starts, instants, side="right") - 1
        edge = np.maximum(place - 1, 0)
        found: Floats = self._amounts[edge] + (instants - self._edges[edge]) * self._rates[place]
        return found

    def when(self, amounts: Floats) -> Floats:
        """Return the last instants at which these amounts are `done`."""
        if len(self._rates) == 1 and self._rates[0] > 0:
            steady: Floats = amounts / self._rates[0] + self._edges[0]
            return steady
        place = np.searchsorted(self._amounts, amounts, side="right") if len(self._rates) > 1 else np.zeros(1, np.intp)
        edge, rate = np.maximum(place - 1, 0), self._rates[place]
        since = np.divide(amounts - self._amounts[edge], rate, out=np.full(len(amounts), np.inf), where=rate > 0)
        found: Floats = self._edges[edge] + since
        return found

    def after(self, now: Floats, amount: Floats) -> Floats:
        """Return the instants by which the amounts are done, from now on; infinity if the rate stays 0."""
        if self.steady:
            return now + amount / self._rates[0] if self._rates[0] else np.full(len(now), np.inf)
        place = np.searchsorted(self._starts, now, side="right") - 1
        found, now, amount = np.full(len(now), np.inf), now.copy(), amount.copy()
        for part in range(int(np.min(place, initial=len(self._rates))), len(self._rates)):
            rate, here = self._rates[part], np.flatnonzero(place == part)
            end = self._starts[part + 1] if part + 1 < len(self._rates) else np.inf
            done = rate * (end - now[here]) if rate else np.zeros(len(here))
            if rate:
                ready = done >= amount[here]
                found[here[ready]] = now[here[ready]] + amount[here[ready]] / rate
                here, done = here[~ready], done[~ready]
            amount[here] -= done
            now[here], place[here] = end, part + 1
        return found


def duration_sampler(duration: Duration, rng: np.random.Generator) -> Callable[[int], Floats]:
    """Return a function that draws n durations.

    >>> duration_sampler(Duration(0.25), stream(1, "service"))(2)
    array([0.25, 0.25])
    """
    mean, spread = float(duration.mean), float(duration.spread)
    if duration.is_zero or duration.shape == "constant":
        return lambda n: np.full(n, mean)
    if duration.shape == "exponential":
        return lambda n: rng.standard_exponential(n) * mean
    if duration.shape == "uniform":
        return lambda n: rng.uniform(mean - spread, mean + spread, n)
    if duration.shape == "normal":
        return lambda n: np.abs(rng.normal(mean, spread, n))
    variance = math.log1p((spread / mean) ** 2)
    return lambda n: rng.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), n)
