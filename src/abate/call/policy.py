"""The policy: all settings for the calls of one dependency, as one frozen value."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from itertools import count
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, ParamSpec, TypeVar, overload

from abate import registry
from abate.admit.budget import Budget
from abate.admit.gate import Gate
from abate.call import async_driver, sync_driver
from abate.call.before_retry import BeforeRetry, check_before_retry, is_async
from abate.call.block import Attempts
from abate.call.counters import CallCounter, acount_call, call_totals, count_call, wrapper_versions
from abate.call.keyed import MAX_KEYS, KeyedPolicies, KeyState
from abate.call.policy_settings import (
    OVERLOAD_BASE,
    SETTINGS,
    Resume,
    changed_settings,
    check_bounded_by_time,
    check_kinds,
    check_shelter,
    check_stream_function,
    check_type,
)
from abate.call.worst_case import WorstCase, worst_case
from abate.call.wrapper import wrap
from abate.clock import Clock, as_clock
from abate.decide.outcome import Ruling
from abate.decide.rules import Matcher, Rules, build_rules, check_matchers
from abate.errors import by_keyword, choice, number, whole
from abate.frozen import Shared, refuse_own_clock
from abate.schedule.backoff import Backoff, RandomSource, Schedule, schedule

if TYPE_CHECKING:
    from abate.admit.shelter import Shelter

_numbers = count()

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Owner = TypeVar("Owner")


class Policy(Shared):
    """How calls are retried: what on, how often, when, and within which budget.

    A policy decorates functions, coroutine functions and generator functions of both kinds, calls them (`call`,
    `acall`) or wraps a block (`attempts`). It is frozen and may be shared by threads and tasks; its calls share nothing
    but budget, gate and shelter.

    * `on`, `unless`: exception types, predicates, rules; `unless` is asked first.
    * `max_attempts`: how many at most, the first one included; None for as many as `timeout` has time for.
    * `max_attempts_by_kind`: tighter bounds for the attempts that fail by a kind: with ``max_attempts=8`` and
      ``{"blip": 2}`` a call ends with its second blip, but makes up to eight attempts in an overload.
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
    * `before_retry`: called before each wait with a `RetryContext` (`error`, `attempt`, `delay`). It may refresh a
      token or change the arguments of the next attempt; if it raises, its error ends the call. A coroutine function is
      for async calls only.
    * `resume`, `idle`, `content`: for generators. ``resume(item)`` returns keyword arguments with which the function
      continues after the last item; `idle` bounds the seconds of silence between items; ``content(item)`` tells items
      that count as the first one from those before it, which are held back.
    * `keys`: how many keys are kept at most; see `keyed`.
    * `clock`, `rng`: the policy's own time and chance.

    >>> import abate
    >>> orders = Policy(name="orders", on=(TimeoutError, abate.http.transient), max_attempts=4, timeout=30.0)
    >>> orders.call(max, 1, 2)
    2
    >>> orders.replace(max_attempts=2) == orders
    False
    """

    name: str
    rules: Rules
    rulings_by_type: Mapping[type, Ruling]
    max_attempts: int | None
    max_attempts_by_kind: Mapping[str, int]
    attempt_limit: float
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
    before_retry: BeforeRetry | None
    resume: Resume | None
    idle: float | None
    content: Callable[[Any], object] | None
    clock: Clock | None
    rng: RandomSource | None
    random_source: RandomSource
    same_clock_as_budget: bool
    same_clock_as_shelter: bool
    bounded: bool
    reads_results: bool
    plain: bool
    plain_in_tasks: bool
    streams_only: bool
    no_gate_or_shelter: bool
    retries_freely: bool
    """Whether no failure that is worth a retry needs a check of its kind or safety, or concerns a gate or shelter."""
    retries_usually: bool
    """Whether most failures need no more than `abate.call.usual_retry` checks."""
    usual_backoffs: dict[type, Schedule]
    """The backoff after errors of these types, which are retried without such checks; cached at their first failure."""
    counter: CallCounter
    _keys: KeyedPolicies
    _number: int
    _path: tuple[Hashable, ...]
    _key_state: KeyState | None
    _given: tuple[tuple[Matcher, ...], tuple[Matcher, ...]]
    __slots__ = ("__weakref__", *__annotations__)  # all of the above

    @by_keyword("Policy", "@abate.retry(on=...), with the errors to retry")
    def __init__(
        self,
        *,
        on: Matcher | Iterable[Matcher],
        unless: Matcher | Iterable[Matcher] = (),
        name: str = "",
        max_attempts: int | None = 3,
        timeout: float | None = None,
        attempt_timeout: float | None = None,
        backoff: Schedule | Callable[[int], float] | Iterable[float] | None = None,
        budget: Budget | None = None,
        gate: Gate | None = None,
        shelter: Shelter | None = None,
        idempotent: bool | None = None,
        max_hint: float = 300.0,
        raises: Literal["original", "exhausted"] = "original",
        max_attempts_by_kind: Mapping[str, int] | None = None,
        before_retry: BeforeRetry | None = None,
        resume: Resume | None = None,
        idle: float | None = None,
        content: Callable[[Any], object] | None = None,
        keys: int = MAX_KEYS,
        clock: Clock | Callable[[], float] | None = None,
        rng: RandomSource | None = None,
    ) -> None:
        def put(slot: str, value: object) -> None:
            object.__setattr__(self, slot, value)

        plan = Backoff() if backoff is None else schedule(backoff)
        put("name", check_type("name", name, str, "a string"))
        put("_given", (check_matchers("on", on), check_matchers("unless", unless)))
        put("rules", build_rules(*self._given))
        put("rulings_by_type", self.rules.rulings_by_type)
        put("max_attempts", None if max_attempts is None else whole("max_attempts", max_attempts, least=1))
        put("attempt_limit", inf if max_attempts is None else max_attempts)
        put("max_attempts_by_kind", MappingProxyType(check_kinds(max_attempts_by_kind)))
        put("timeout", None if timeout is None else number("timeout", timeout, above=0))
        limit = None if attempt_timeout is None else number("attempt_timeout", attempt_timeout, above=0)
        put("attempt_timeout", limit)
        if max_attempts is None:
            check_bounded_by_time(plan, timeout)
        put("backoff", plan)
        put("overload_backoff", plan.at_least(OVERLOAD_BASE))
        put("budget", Budget(clock=clock) if budget is None else check_type("budget", budget, Budget, "a Budget"))
        put("gate", check_type("gate", gate, (Gate, type(None)), "a gate"))
        put("shelter", None if shelter is None else check_shelter(shelter))
        put("idempotent", check_type("idempotent", idempotent, (bool, type(None)), "True or False"))
        put("max_hint", number("max_hint", max_hint, least=0))
        put("raises", choice("raises", raises, ("original", "exhausted")))
        put("before_retry", check_before_retry(before_retry))
        put("resume", check_stream_function("resume", resume))
        put("idle", None if idle is None else number("idle", idle, above=0))
        put("content", check_stream_function("content", content))
        put("streams_only", not (resume is None and idle is None and content is None))
        put("clock", as_clock(clock))
        put("rng", rng)
        put("random_source", random if rng is None else rng)
        put("same_clock_as_budget", clock is None and self.budget.states.follows_context)
        put("same_clock_as_shelter", clock is None and shelter is not None and shelter.follows_context)
        put("bounded", timeout is not None or attempt_timeout is not None)
        put("reads_results", self.rules.reads_results or self.rules.reads_responses)
        put("plain_in_tasks", self._is_plain())
        put("plain", self.plain_in_tasks and not is_async(before_retry))
        put("no_gate_or_shelter", gate is None and shelter is None)
        put("retries_freely", self.no_gate_or_shelter and idempotent is not False and not max_attempts_by_kind)
        put("retries_usually", self.plain_in_tasks and self.retries_freely and before_retry is None)
        put("usual_backoffs", {})
        put("counter", CallCounter(name))
        put("_keys", KeyedPolicies(whole("keys", keys, least=1), self.budget, gate, shelter))
        put("_number", next(_numbers))
        put("_path", ())
        put("_key_state", None)
        if clock is None:
            registry.policies.add(self)
            call_totals.track(self.counter)

    def _is_plain(self) -> bool:
        """Return whether a successful call needs only a deposit, and a look at whether it is an HTTP response."""
        return (
            not (self.bounded or self.rules.reads_results or self.streams_only)
            and self.gate is None
            and self.budget.funded_by == "success"
        )

    # -- the ways to use it

    @overload
    def __call__(self, function: classmethod[Owner, P, T]) -> classmethod[Owner, P, T]: ...
    @overload
    def __call__(self, function: staticmethod[P, T]) -> staticmethod[P, T]: ...
    @overload
    def __call__(self, function: F) -> F: ...
    def __call__(self, function: Any) -> Any:
        """Decorate a function, (async) generator or coroutine function, or any kind of method, and keep its type.

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
        if wrapper_versions.on:
            result: T = count_call(self.counter, sync_driver.call, self, function, args, kwargs)
            return result
        return sync_driver.call(self, function, args, kwargs)

    async def acall(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a coroutine function with retries, under asyncio or trio.

        >>> import asyncio
        >>> async def load(order): return f"order {order}"
        >>> asyncio.run(Policy(on=ConnectionError).acall(load, 42))
        'order 42'
        """
        if wrapper_versions.on:
            return await acount_call(self.counter, async_driver.call, self, function, args, kwargs)
        return await async_driver.call(self, function, args, kwargs)

    def attempts(self) -> Attempts:
        """Return the attempts of a block, for ``for`` and ``async for``; each is a context manager.

        >>> for attempt in Policy(on=ConnectionError).attempts():
        ...     with attempt:
        ...         answer = 42
        >>> answer
        42
        """
        return Attempts(self)

    def keyed(self, key: Hashable) -> Policy:
        """Return this policy for one key (a host, a tenant, an endpoint), with its own budget, gate and shelter.

        So failures of one key do not affect the others. A key has new copies of this policy's budget, gate and
        shelter. A gate of your own, and what a store shares with a fleet, is shared by all keys; instead of a store's
        shelter, each key has one of this process. Policies made from one another by `replace` share their keys, as long
        as they share budget, gate and shelter.

        At most ``keys`` are kept (1000 by default), and an eighth more that are new; a key that was not used for ten
        minutes is forgotten, unless it has calls in flight or something refers to its policy.

        >>> hooks = Policy(on=ConnectionError, name="hooks")
        >>> hooks.keyed("shop.example").call(max, 1, 2)
        2
        >>> hooks.keyed("shop.example") is hooks.keyed("shop.example")
        True
        """
        return self._keys.policy((*self._path, key), self._number, self._for_key)

    def _for_key(self, state: KeyState, path: tuple[Hashable, ...]) -> Policy:
        copy: Policy = object.__new__(Policy)  # not in the registry: metrics have no label for keys
        own: dict[str, object] = {
            "budget": state.budget,
            "gate": state.gate,
            "shelter": state.shelter,
            "_key_state": state,
            "_path": path,
            "_number": next(_numbers),
        }
        for slot in Policy.__slots__[1:]:
            object.__setattr__(copy, slot, own[slot] if slot in own else getattr(self, slot))
        return copy

    def describe(self) -> WorstCase:
        """Return the worst case: how long a caller may wait, and how many attempts a failing server may see.

        >>> print(Policy(on=OSError, max_attempts=3).describe())
        at most 3 attempts; at most 3 s of waiting (and up to 300 s per retry where a server asks for it);
        at most 1.2 attempts per call on average, plus 10 retries per second
        """
        return worst_case(self)

    # -- a value

    def replace(self, **changes: Any) -> Policy:
        """Return a copy with `changes`. It shares budget, gate and shelter, unless they are changed.

        >>> Policy(on=OSError, name="orders").replace(max_attempts=5).name
        'orders'
        """
        copy = Policy(**{**self._settings(), **changes})
        if copy.name == self.name and copy.clock is self.clock:
            object.__setattr__(copy, "counter", self.counter)  # one counter per name
        if (copy.budget, copy.gate, copy.shelter, copy.keys) == (self.budget, self.gate, self.shelter, self.keys):
            for slot in ("_keys", "_path", "_key_state"):
                object.__setattr__(copy, slot, getattr(self, slot))
        return copy

    def also(self, *on: Matcher, before: tuple[Matcher, ...] = ()) -> Policy:
        """Return a copy that also retries on these, after or `before` its own rules.

        >>> policy = Policy(on=OSError, backoff=[0.0]).also(KeyError)
        >>> import abate
        >>> policy.call(abate.testing.Script(KeyError(), OSError(), "fine"))
        'fine'
        """
        return self.replace(on=(*before, *self._given[0], *on))

    @property
    def keys(self) -> int:
        """The most keys that are kept."""
        return self._keys.most

    @property
    def shelters(self) -> list[Shelter]:
        """The policy's shelter and those of its keys."""
        return [] if self.shelter is None else [self.shelter, *self._keys.shelters()]

    def _settings(self) -> dict[str, Any]:
        on, unless = self._given
        given = {"on": on, "unless": unless, "max_attempts_by_kind": dict(self.max_attempts_by_kind)}
        return {name: given[name] if name in given else getattr(self, name) for name in SETTINGS}

    def _compared(self) -> tuple[object, ...]:
        settings = self._settings()
        settings["budget"] = self.budget.settings()
        settings["max_attempts_by_kind"] = tuple(sorted(self.max_attempts_by_kind.items()))
        return tuple(settings.values())

    def __eq__(self, other: object) -> bool:
        return self._compared() == other._compared() if isinstance(other, Policy) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._compared())

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Policy is frozen: use replace({name}=...)")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a Policy is frozen")

    def _pickled_settings(self) -> dict[str, Any]:
        refuse_own_clock(self, self.clock is not None)
        return self._settings()

    def __repr__(self) -> str:
        return f"Policy({changed_settings(self._settings())})"
