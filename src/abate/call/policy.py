"""The policy: everything that is decided beforehand about the calls of one dependency, as one frozen value."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from itertools import count
from typing import Any, Literal, NoReturn, ParamSpec, TypeVar, overload

from abate import registry
from abate.admit.budget import Budget
from abate.admit.gate import Gate
from abate.admit.shelter import Shelter
from abate.call import tasks, threads
from abate.call.block import Attempts
from abate.call.describe import WorstCase, worst_case
from abate.call.keyed import MOST, Apart, Keys
from abate.call.tally import Tally, acounted, counted, roll, watch
from abate.call.wrap import wrap
from abate.clock import Clock, given
from abate.decide.outcome import Ruling
from abate.decide.rules import Matcher, Rules, matchers, rules
from abate.errors import choice, number, whole
from abate.redact import shown
from abate.schedule.backoff import Backoff, Schedule, Uniform, schedule
from abate.values import Shared, clockless

OVERLOAD_BASE = 1.0
"""Seconds; the backoff after an overload starts from at least this."""

SETTINGS = (
    "on",
    "unless",
    "name",
    "attempts",
    "timeout",
    "attempt_timeout",
    "backoff",
    "budget",
    "gate",
    "shelter",
    "idempotent",
    "max_hint",
    "raises",
    "keys",
    "clock",
    "rng",
)

_numbers = count()

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Owner = TypeVar("Owner")


class Policy(Shared):
    """How calls are retried: what on, how often, when, and within which budget.

    A policy decorates functions and coroutine functions, calls them (`call`, `acall`) or wraps a block
    (`attempts`). It is frozen and may be shared by threads and tasks; its calls share nothing but budget, gate and
    shelter.

    * `on`, `unless`: exception types, predicates, rules; `unless` is asked first.
    * `attempts`: how many at most, the first one included.
    * `timeout`: seconds for the whole call. It is a hard deadline, and clients inside cut their timeouts to it.
    * `attempt_timeout`: seconds for one attempt. Async attempts are cut off; in threads it is a deadline that
      clients inside keep.
    * `backoff`: a `Backoff`, a function of the retry's number, or a list of seconds. After an overload a `Backoff`
      starts from at least 1 s.
    * `budget`: bounds the retries of all calls together; a fresh ``Budget()`` unless given.
    * `gate`: admits every attempt, first ones too.
    * `shelter`: where calls wait while the dependency is down, first attempts too.
    * `idempotent`: False retries only what the server provably never saw; True repeats whatever fails; unless
      given, the failed request may say so itself (an HTTP method), and anything else is repeated.
    * `max_hint`: the longest hint of a server that is waited for, in seconds.
    * `raises`: ``"original"`` re-raises the error; ``"exhausted"`` wraps it in `RetryExhausted`.
    * `keys`: how many keys are kept at most; see `keyed`.
    * `clock`, `rng`: the policy's own time and chance.

    >>> import abate
    >>> orders = Policy(name="orders", on=(TimeoutError, abate.http.transient), attempts=4, timeout=30.0)
    >>> orders.call(max, 1, 2)
    2
    >>> orders.replace(attempts=2) == orders
    False
    """

    __slots__ = (
        "__weakref__",
        "_apart",
        "_given",
        "_keys",
        "_number",
        "_path",
        "attempt_timeout",
        "backoff",
        "bounded",
        "budget",
        "chance",
        "clock",
        "gate",
        "idempotent",
        "known",
        "max_attempts",
        "max_hint",
        "name",
        "one_clock",
        "one_shelter_clock",
        "overload_backoff",
        "plain",
        "raises",
        "reads_results",
        "rng",
        "rules",
        "shelter",
        "tally",
        "timeout",
        "ungated",
    )

    name: str
    rules: Rules
    known: Mapping[type, Ruling]
    max_attempts: int
    timeout: float | None
    attempt_timeout: float | None
    backoff: Schedule
    overload_backoff: Schedule
    budget: Budget
    gate: Gate | None
    shelter: Shelter | None
    idempotent: bool | None
    max_hint: float
    raises: Literal["original", "exhausted"]
    clock: Clock | None
    rng: Uniform | None
    chance: Uniform
    one_clock: bool
    one_shelter_clock: bool
    bounded: bool
    reads_results: bool
    plain: bool
    ungated: bool
    tally: Tally
    _keys: Keys
    _number: int
    _path: tuple[Hashable, ...]
    _apart: Apart | None
    _given: tuple[tuple[Matcher, ...], tuple[Matcher, ...]]

    def __init__(
        self,
        *,
        on: Matcher | Iterable[Matcher],
        unless: Matcher | Iterable[Matcher] = (),
        name: str = "",
        attempts: int = 3,
        timeout: float | None = None,
        attempt_timeout: float | None = None,
        backoff: Schedule | Callable[[int], float] | Iterable[float] | None = None,
        budget: Budget | None = None,
        gate: Gate | None = None,
        shelter: Shelter | None = None,
        idempotent: bool | None = None,
        max_hint: float = 300.0,
        raises: Literal["original", "exhausted"] = "original",
        keys: int = MOST,
        clock: Clock | Callable[[], float] | None = None,
        rng: Uniform | None = None,
    ) -> None:
        def put(slot: str, value: object) -> None:
            object.__setattr__(self, slot, value)

        plan = Backoff() if backoff is None else schedule(backoff)
        put("name", _typed("name", name, str, "a string"))
        put("_given", (matchers("on", on), matchers("unless", unless)))
        put("rules", rules(*self._given))
        put("known", self.rules.known)
        put("max_attempts", whole("attempts", attempts, least=1))
        put("timeout", None if timeout is None else number("timeout", timeout, above=0))
        put(
            "attempt_timeout",
            None if attempt_timeout is None else number("attempt_timeout", attempt_timeout, above=0),
        )
        put("backoff", plan)
        put("overload_backoff", plan.at_least(OVERLOAD_BASE))
        put("budget", Budget(clock=clock) if budget is None else _typed("budget", budget, Budget, "a Budget"))
        put("gate", _typed("gate", gate, (Gate, type(None)), "a gate"))
        put("shelter", _typed("shelter", shelter, (Shelter, type(None)), "a Shelter"))
        put("idempotent", _typed("idempotent", idempotent, (bool, type(None)), "True or False"))
        put("max_hint", number("max_hint", max_hint, least=0))
        put("raises", choice("raises", raises, ("original", "exhausted")))
        put("clock", given(clock))
        put("rng", rng)
        put("chance", random if rng is None else rng)
        put("one_clock", clock is None and self.budget.timeline.ambient)
        put("one_shelter_clock", clock is None and shelter is not None and shelter.ambient)
        put("bounded", timeout is not None or attempt_timeout is not None)
        put("reads_results", self.rules.reads_results)
        put("plain", self._is_plain())
        put("ungated", gate is None and shelter is None)
        put("tally", Tally(name))
        put("_keys", Keys(whole("keys", keys, least=1), self.budget, gate, shelter))
        put("_number", next(_numbers))
        put("_path", ())
        put("_apart", None)
        if clock is None:
            registry.policies.add(self)
            roll.note(self.tally)

    def _is_plain(self) -> bool:
        """Does a call that succeeds need nothing but its deposit?"""
        return not self.bounded and self.gate is None and self.budget.funded_by == "success" and not self.reads_results

    # -- the ways to use it

    @overload
    def __call__(self, function: classmethod[Owner, P, T]) -> classmethod[Owner, P, T]: ...
    @overload
    def __call__(self, function: staticmethod[P, T]) -> staticmethod[P, T]: ...
    @overload
    def __call__(self, function: F) -> F: ...
    def __call__(self, function: Any) -> Any:
        """Decorate a function, coroutine function, method, classmethod or staticmethod; its type is kept.

        >>> import abate
        >>> @abate.retry(on=ConnectionError)
        ... def load(order: int) -> str:
        ...     return f"order {order}"
        >>> load(42)
        'order 42'
        """
        if isinstance(function, (classmethod, staticmethod)):
            return type(function)(self(function.__func__))
        return wrap(self, function)

    def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function with retries.

        >>> Policy(on=ConnectionError).call(divmod, 7, 2)
        (3, 1)
        """
        if watch.on:
            result: T = counted(self.tally, threads.call, self, function, args, kwargs)
            return result
        return threads.call(self, function, args, kwargs)

    async def acall(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a coroutine function with retries, under asyncio or trio.

        >>> import asyncio
        >>> async def load(order): return f"order {order}"
        >>> asyncio.run(Policy(on=ConnectionError).acall(load, 42))
        'order 42'
        """
        if watch.on:
            return await acounted(self.tally, tasks.call, self, function, args, kwargs)
        return await tasks.call(self, function, args, kwargs)

    def attempts(self) -> Attempts:
        """The attempts of a block, for ``for`` and ``async for``; each is a context manager.

        >>> for attempt in Policy(on=ConnectionError).attempts():
        ...     with attempt:
        ...         answer = 42
        >>> answer
        42
        """
        return Attempts(self)

    def keyed(self, key: Hashable) -> Policy:
        """The same policy for one key (a host, a tenant, an endpoint), with a budget, gate and shelter of its own.

        So the trouble of one key is not that of the others. A key has what this policy has, begun anew: what it is
        given beside that (a gate of your own, what a store shares with a fleet) stays one for all keys, but for a
        store's shelter, in the place of which each key has one of this process. Policies that were made from one
        another by `replace` share their keys, as long as they share budget, gate and shelter.

        At most ``keys`` are kept (1000 unless given), and an eighth more that are new; a key that was not
        used for ten minutes is forgotten. One with calls under way, or whose policy is held by somebody, is not.

        >>> hooks = Policy(on=ConnectionError, name="hooks")
        >>> hooks.keyed("shop.example").call(max, 1, 2)
        2
        >>> hooks.keyed("shop.example") is hooks.keyed("shop.example")
        True
        """
        return self._keys.policy((*self._path, key), self._number, self._for_key)

    def _for_key(self, apart: Apart, path: tuple[Hashable, ...]) -> Policy:
        copy: Policy = object.__new__(Policy)  # not listed with other policies: metrics have no label for keys
        own: dict[str, object] = {
            "budget": apart.budget,
            "gate": apart.gate,
            "shelter": apart.shelter,
            "_apart": apart,
            "_path": path,
            "_number": next(_numbers),
        }
        for slot in Policy.__slots__[1:]:
            object.__setattr__(copy, slot, own[slot] if slot in own else getattr(self, slot))
        return copy

    def describe(self) -> WorstCase:
        """The worst that this policy can do: to a caller's patience, and to a server that fails.

        >>> print(Policy(on=OSError, attempts=3).describe())
        at most 3 attempts; at most 3 s of waiting (and up to 300 s per retry where a server asks for it);
        at most 1.2 attempts per call on average, and 10 retries per second beside
        """
        return worst_case(self)

    # -- a value

    def replace(self, **changes: Any) -> Policy:
        """A policy like this one, but for `changes`. It shares budget, gate and shelter, unless they are changed.

        >>> Policy(on=OSError, name="orders").replace(attempts=5).name
        'orders'
        """
        unknown = changes.keys() - set(SETTINGS)
        if unknown:
            raise TypeError(f"a Policy has no setting {_listed(unknown)}; it has {', '.join(SETTINGS)}")
        copy = Policy(**{**self._settings(), **changes})
        if copy.name == self.name and copy.clock is self.clock:
            object.__setattr__(copy, "tally", self.tally)  # the calls of one name are counted as one
        if (copy.budget, copy.gate, copy.shelter, copy.keys) == (self.budget, self.gate, self.shelter, self.keys):
            for slot in ("_keys", "_path", "_apart"):
                object.__setattr__(copy, slot, getattr(self, slot))
        return copy

    def also(self, *on: Matcher, before: tuple[Matcher, ...] = ()) -> Policy:
        """The same policy, which asks these as well, behind or `before` what it asks by itself.

        >>> policy = Policy(on=OSError, backoff=[0.0]).also(KeyError)
        >>> import abate
        >>> policy.call(abate.testing.Script(KeyError(), OSError(), "fine"))
        'fine'
        """
        return self.replace(on=(*before, *self._given[0], *on))

    @property
    def keys(self) -> int:
        """How many keys are kept at most."""
        return self._keys.most

    @property
    def shelters(self) -> list[Shelter]:
        """The policy's shelter, and those of its keys."""
        return [] if self.shelter is None else [self.shelter, *self._keys.shelters()]

    def _settings(self) -> dict[str, Any]:
        on, unless = self._given
        renamed = {"on": on, "unless": unless, "attempts": self.max_attempts}
        return {name: renamed[name] if name in renamed else getattr(self, name) for name in SETTINGS}

    def _compared(self) -> tuple[object, ...]:
        settings = self._settings()
        settings["budget"] = self.budget.settings()
        return tuple(settings.values())

    def __eq__(self, other: object) -> bool:
        return self._compared() == other._compared() if isinstance(other, Policy) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._compared())

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Policy is frozen: use replace({name}=...)")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a Policy is frozen")

    def _made_from(self) -> dict[str, Any]:
        clockless(self, self.clock is not None)
        return self._settings()

    def __repr__(self) -> str:
        defaults: dict[str, object] = {"unless": (), "keys": MOST, "clock": None, "rng": None}
        defaults |= {"gate": None, "shelter": None, "idempotent": None}
        shown = (
            f"{name}={_shown(value)}"
            for name, value in self._settings().items()
            if name not in defaults or value != defaults[name]
        )
        return f"Policy({', '.join(shown)})"


def _typed(name: str, value: Any, kinds: Any, expected: str) -> Any:
    if not isinstance(value, kinds):
        raise TypeError(f"{name} must be {expected}, not {shown(value)}")
    return value


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        inner = ", ".join(_shown(part) for part in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return value.__qualname__ if isinstance(value, type) else repr(value)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))
