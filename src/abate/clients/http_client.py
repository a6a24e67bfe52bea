"""The parts that all HTTP clients share: settings, the policy for each request, and how to end a discarded response.

A client says how to send a request and how to read a response (`Library`), and gets:

* HTTP's table of statuses, after the policy's own rules;
* a request that may not be repeated is sent again only if the failure proves that the server never saw it, and a
  request whose body cannot be replayed is never sent again;
* a response that will be retried is released before every wait, so that its connection serves other calls. Its body is
  read if it ends soon (`MAX_DRAIN_BYTES`, `drain_timeout`), which keeps connection and body; otherwise the connection
  is closed;
* an attempt whose deadline has passed is not sent: it ends with the library's own connect timeout error.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from abate.call import async_driver, counters, sync_driver
from abate.call.policy import Policy
from abate.clients.headers import EXHAUSTED, Secrets, upstream_gave_up
from abate.clients.stopwatch import ErrorRule, Timeouts
from abate.clients.trust import Secret
from abate.decide import http
from abate.decide.outcome import LAYER, Outcome, Ruling
from abate.decide.rules import Rule
from abate.redact import short_repr

R = TypeVar("R")

MAX_DRAIN_BYTES, DRAIN_SECONDS = 65_536, 0.25
"""How much of a discarded response is read, and for how long, to keep its connection; a longer one is closed."""
MIN_TIMEOUT = 0.001
"""Seconds; a timeout is not cut below this: for httpx zero means not to wait at all, and urllib3 refuses it."""
BODY_DISCARDED = "the body was given up together with the connection, which others may need while a call waits"
"""The error text for code that reads the body of such a response after all."""
DEADLINE_PASSED = "nothing was sent: the deadline had passed"
"""The error text of an attempt that would begin after its deadline."""

Key = Literal["host"] | Callable[[Any], Hashable] | None
"""The setting ``key=``: see `ClientSettings`."""
KeyFunction = Callable[[Any], Hashable]
ResponseReader = Callable[[Any], tuple[int, Mapping[str, str]]]


class Library(NamedTuple):
    """What differs between HTTP libraries."""

    name: str
    judge_error: ErrorRule
    read_response: ResponseReader
    """Return the status and the headers of a response."""
    host_of: KeyFunction
    """Return the host and port that a request goes to."""


class OnClientErrors(Rule):
    """Judge the errors of a client's library, which knows best whether the server has seen the request."""

    judge_error: ErrorRule

    def judge(self, outcome: Outcome) -> Ruling | None:
        return None if outcome.error is None else self.judge_error(outcome.error)


class OnResponses(Rule):
    """Judge a client's responses by HTTP's table."""

    read: ResponseReader

    reads_results = True

    def judge(self, outcome: Outcome) -> Ruling | None:
        if outcome.error is not None:
            return None
        status, headers = self.read(outcome.result)
        if status >= 400 and upstream_gave_up(http.header(headers, EXHAUSTED)):
            return LAYER
        return http.judge(status, headers)


class ClientSettings:
    """The settings that every HTTP client takes, checked; and the policy for each request.

    * `policy`: its `on` is asked after the rules for the library's errors and before HTTP's table of statuses. A policy
      without a name is given the library's.
    * `idempotency_key`: put an ``Idempotency-Key`` on requests whose method is not safe and which have none; all
      attempts of a call carry the same key. Only for servers that support it.
    * `timeouts`: an object such as `abate.Timeouts`. Its ``request()`` and ``connect()`` bound the library's timeouts,
      and its ``observe(seconds)`` receives how long each good response took, without connecting.
      ``observe_connect(seconds)``, if it has that, receives how long each new connection took to open, TLS included.
    * `secrets`: the `abate.clients.trust.Secret` for each host, so that services there trust this client:
      ``{"orders.internal": Secret(…), "*.shop.internal": Secret(…)}``. Other hosts receive none, also after redirects.
    * `key`: ``"host"`` gives each host and port its own budget, gate and shelter (see `Policy.keyed`). A function of
      the request gives one to each value that it returns; for None the request has no key.
    """

    __slots__ = (
        "_idempotency_key",
        "_key_of",
        "_once",
        "_repeatable",
        "_unsafe",
        "judge_error",
        "policy",
        "read_response",
        "secrets",
        "timeouts",
    )

    def __init__(
        self,
        library: Library,
        policy: Policy,
        *,
        idempotency_key: bool,
        timeouts: Timeouts | None,
        secrets: Mapping[str, Secret] | None,
        key: Key,
        raises: Literal["original", "exhausted"] | None = None,
    ) -> None:
        if not isinstance(policy, Policy):
            raise TypeError(f"policy must be a Policy, not {short_repr(policy)}")
        if not isinstance(idempotency_key, bool):
            raise TypeError(f"idempotency_key must be True or False, not {short_repr(idempotency_key)}")
        needed = () if timeouts is None else ("request", "connect", "observe")
        if not all(callable(getattr(timeouts, name, None)) for name in needed):
            raise TypeError(f"timeouts must have request(), connect() and observe(), not be {short_repr(timeouts)}")
        self.policy = policy if policy.name else policy.replace(name=library.name)
        """The policy as given, with a name. It has the call counters."""
        self.judge_error, self.read_response = library.judge_error, library.read_response
        self._idempotency_key = idempotency_key
        self.timeouts = timeouts
        self.secrets = Secrets(secrets)
        self._key_of = _key_function(key, library.host_of)
        base = self.policy if raises is None else self.policy.replace(raises=raises)
        fitted = base.also(OnResponses(self.read_response), before=(OnClientErrors(self.judge_error),))
        declared = policy.idempotent
        self._repeatable = fitted.replace(idempotent=True if declared is None else declared)
        self._unsafe = fitted.replace(idempotent=False if declared is None else declared)
        self._once = fitted.replace(max_attempts=1)

    def needs_idempotency_key(self, method: str, headers: Mapping[str, str]) -> bool:
        """Return whether a request must be given an ``Idempotency-Key``."""
        return self._idempotency_key and not http.repeatable(method, headers)

    def policy_for(self, request: Any, method: str, headers: Mapping[str, str], *, replayable: bool) -> Policy:
        """Return the policy for one request; all of them share the budget, gate and shelter of their key."""
        if not replayable:
            policy = self._once
        else:
            policy = self._repeatable if http.repeatable(method, headers) else self._unsafe
        key = self._key_of(request)
        return policy if key is None else policy.keyed(key)

    def drive(self, policy: Policy, attempt: Callable[[], R], release: Callable[[float | None], object]) -> R:
        """Make a call of `attempt`, counted if anything watches; `release` is called before each wait."""
        call = partial(sync_driver.drive, policy, None, 0, attempt, (), {}, let_go=release)
        return counters.count_call(self.policy.counter, call) if counters.wrapper_versions.on else call()

    async def adrive(
        self,
        policy: Policy,
        attempt: Callable[[], Awaitable[R]],
        release: Callable[[float | None], Awaitable[object]],
    ) -> R:
        """Do the same as `drive` for a coroutine function."""
        call = partial(async_driver.drive, policy, None, 0, attempt, (), {}, let_go=release)
        return await (counters.acount_call(self.policy.counter, call) if counters.wrapper_versions.on else call())


def _key_function(key: Key, host_of: KeyFunction) -> KeyFunction:
    if key is None:
        return _no_key
    if key == "host":
        return host_of
    if not callable(key):
        raise TypeError(f'key must be "host" or a function of the request, not {key!r}')
    return key


def _no_key(request: Any) -> None:
    return None


def new_idempotency_key() -> str:
    """Return a fresh ``Idempotency-Key``. Each call uses one for all its attempts."""
    return str(uuid.uuid4())


def drain_timeout(left: float | None) -> float:
    """Return for how many seconds a discarded response may be read, with `left` seconds until the deadline."""
    return DRAIN_SECONDS if left is None else max(0.0, min(left, DRAIN_SECONDS))
