"""The parts that all HTTP clients share: settings, the policy for each request, and how to end a discarded response.

A client says how to send a request and how to read a response (`Library`), and gets:

* the policy's own rules, which judge the library's responses and errors (`client_rules`). By default HTTP's table does
  (`abate.decide.http`): a connection that could not be made is a request that the server never saw, timeouts are
  overload, broken connections and garbled responses are blips;
* a request that may not be repeated is sent again only if the failure proves that the server did not process it, and a
  request whose body cannot be replayed is never sent again;
* a response that will be retried is released before every wait, so that its connection serves other calls. Its body is
  read if it ends soon (`MAX_DRAIN_BYTES`, `drain_timeout`), which keeps connection and body; otherwise the connection
  is closed. If the next attempt is then refused, this response is returned after all, without its body if the
  connection was closed;
* an attempt whose deadline has passed is not sent: it ends with the library's own connect timeout error.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, MutableMapping
from functools import partial
from math import inf
from typing import Any, Literal, TypeVar

from abate.call import async_driver, counters, sync_driver
from abate.call.actions import Stop
from abate.call.client_request import ClientCall, ClientRequest
from abate.call.policy import Policy
from abate.clients.client_rules import ClientRules, KeyFunction, Library, client_rules
from abate.clients.headers import PrivateHeaders
from abate.clients.outer_retries import MESH_RETRIES, earlier_retries, tells_outer_layers
from abate.clients.stopwatch import TimeoutSource
from abate.clients.trust import Secret
from abate.decide import http
from abate.decide.outcome import Outcome
from abate.decide.request_settings import declared_idempotent
from abate.errors import Report
from abate.redact import short_repr

R = TypeVar("R")

MAX_DRAIN_BYTES, DRAIN_SECONDS = 65_536, 0.25
"""How much of a discarded response is read, and for how long, to keep its connection; a longer one is closed."""
PIECE, MAX_DECODED = 1024, 262_144
"""Bytes of an error's body that are decoded at once, which may become a thousand times as many; and the most bytes of a
decoded body."""
MIN_TIMEOUT = 0.001
"""Seconds; a timeout is not cut below this: for httpx zero means not to wait at all, and urllib3 refuses it."""
BODY_DISCARDED = "the body was given up together with the connection, which others may need while a call waits"
"""The error text for code that reads the body of such a response after all."""
DEADLINE_PASSED = "nothing was sent: the deadline had passed"
"""The error text of an attempt that would begin after its deadline."""

Key = Literal["host"] | Callable[[Any], Hashable] | None
"""The setting ``key=``: see `ClientSettings`."""
MAX_REDUCED_ATTEMPTS = 100
"""The most attempts of a request that an outer layer has sent before: a client keeps a policy for each number."""


class ClientSettings:
    """The settings that every HTTP client takes, checked; and the policy for each request.

    * `policy`: its `on` and `unless` say what is retried, as everywhere. The default is ``Policy(on=http.transient)``:
      HTTP's table. A policy without a name is given the library's.
    * `idempotency_key`: put an ``Idempotency-Key`` on requests whose method is not safe and which have none; all
      attempts of a call carry the same key. Only for servers that support it.
    * `timeouts`: an object such as `abate.Timeouts`. Its ``request()`` and ``connect()`` bound the library's timeouts,
      and its ``observe(seconds)`` receives how long each good response took, without connecting.
      ``observe_connect(seconds)``, if it has that, receives how long each new connection took to open, TLS included.
    * `secrets`: the `abate.clients.trust.Secret` for each host, so that services there trust this client:
      ``{"orders.internal": Secret(…), "*.shop.internal": Secret(…)}``. Other hosts receive none, also after redirects.
    * `ours`: hosts of our own beside private ones, which receive ``Abate-Attempt`` and ``Abate-Deadline``:
      ``("*.shop.example", "api.mine.example")``. ``()`` means that no host receives them, except those with a secret.
      See `abate.clients.headers.PrivateHeaders`.
    * `key`: ``"host"`` gives each host and port its own budget, gate and shelter (see `Policy.keyed`). A function of
      the request gives one to each value that it returns; for None the request has no key.
    * `mesh_retries`: False asks Envoy, and meshes built on it, not to retry (``x-envoy-max-retries: 0``).
    """

    __slots__ = (
        "_fitted",
        "_idempotency_key",
        "_key_of",
        "_variants",
        "judge_error",
        "library",
        "mesh_retries",
        "policy",
        "private_headers",
        "read_response",
        "timeouts",
    )

    def __init__(
        self,
        library: Library,
        policy: Policy | None,
        *,
        idempotency_key: bool,
        timeouts: TimeoutSource | None,
        secrets: Mapping[str, Secret] | None,
        ours: Iterable[str] | None,
        key: Key,
        mesh_retries: bool,
        raises: Literal["original", "exhausted"] | None = None,
    ) -> None:
        if policy is None:
            policy = Policy(on=http.transient)
        if not isinstance(policy, Policy):
            raise TypeError(f"policy must be a Policy, not {short_repr(policy)}")
        for name, value in (("idempotency_key", idempotency_key), ("mesh_retries", mesh_retries)):
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be True or False, not {short_repr(value)}")
        needed = () if timeouts is None else ("request", "connect", "observe")
        if not all(callable(getattr(timeouts, name, None)) for name in needed):
            raise TypeError(f"timeouts must have request(), connect() and observe(), not be {short_repr(timeouts)}")
        self.policy = policy if policy.name else policy.replace(name=library.name)
        """The policy as given, with a name. It has the call counters."""
        self.judge_error, self.read_response = library.judge_error, library.read_response
        self.library = library
        self._idempotency_key = idempotency_key
        self.timeouts = timeouts
        self.private_headers = PrivateHeaders(secrets, ours)
        self.mesh_retries = mesh_retries
        self._key_of = _key_function(key, library.host_of)
        self._fitted = self.policy if raises is None else self.policy.replace(raises=raises)
        self._variants: dict[tuple[bool, bool, float], Policy] = {}
        self._variant(idempotent=True, replayable=True, attempts=policy.attempt_limit)

    def needs_idempotency_key(self, method: str, headers: Mapping[str, str]) -> bool:
        """Return whether a request must be given an ``Idempotency-Key``."""
        return self._idempotency_key and not http.repeatable(method, headers)

    def set_headers(self, headers: MutableMapping[str, str], host: str | None, attempt: int) -> None:
        """Set abate's headers on the request of one attempt, and remove those that do not belong on it."""
        self.private_headers.set_headers(headers, host, attempt)
        if not self.mesh_retries:
            headers.setdefault(MESH_RETRIES, "0")

    def policy_for(
        self,
        request: Any,
        method: str,
        headers: Mapping[str, str],
        *,
        replayable: bool,
        has_key: bool = False,
        idempotent: bool | None = None,
    ) -> Policy:
        """Return the policy for one request; all of them share the budget, gate and shelter of their key.

        `has_key` says that the request will carry an ``Idempotency-Key`` that is not in its headers yet, `idempotent`
        what the request says about itself.
        """
        for declared in (idempotent, declared_idempotent(), self.policy.idempotent):
            if declared is not None:
                break
        else:
            declared = has_key or http.repeatable(method, headers)
        attempts, earlier = self.policy.attempt_limit, earlier_retries(headers)
        if earlier and attempts != inf:
            attempts = max(1, min(attempts - earlier, MAX_REDUCED_ATTEMPTS))
        policy = self._variant(declared, replayable, attempts)
        key = self._key_of(request)
        return policy if key is None else policy.keyed(key)

    def _variant(self, idempotent: bool, replayable: bool, attempts: float) -> Policy:
        variant = idempotent, replayable, attempts
        policy = self._variants.get(variant)
        if policy is None:
            policy = self._fitted.replace(
                on=client_rules(self.policy.rules, self.library, replayable),
                unless=(),
                idempotent=idempotent,
                max_attempts=None if attempts == inf else int(attempts),
            )
            self._variants[variant] = policy
        return policy

    def mark_given_up(self, response: Any, policy: Policy, report: Report) -> None:
        """Put the report on a response that is given up on, and tell layers above not to retry; see `outer_retries`."""
        reduced = policy.attempt_limit < self.policy.attempt_limit
        final = tells_outer_layers(report, reduced) or (
            report.reason == "fatal"
            and http.is_out_of_quota(self.read_response(response)[0], self.library.body_of(response))
        )
        self.library.mark(response, report, final)

    def drive(
        self, policy: Policy, request: Any, attempt: Callable[[], R], release: Callable[[float | None], object]
    ) -> R:
        """Make a call of `attempt`, counted if anything watches; `release` is called before each wait."""
        make = HttpRequest(request, self).make
        call = partial(sync_driver.drive, policy, None, 0, attempt, (), {}, let_go=release, make=make)
        return counters.count_call(self.policy.counter, call) if counters.wrapper_versions.on else call()

    async def adrive(
        self,
        policy: Policy,
        request: Any,
        attempt: Callable[[], Awaitable[R]],
        release: Callable[[float | None], Awaitable[object]],
    ) -> R:
        """Do the same as `drive` for a coroutine function."""
        make = HttpRequest(request, self).make
        call = partial(async_driver.drive, policy, None, 0, attempt, (), {}, let_go=release, make=make)
        return await (counters.acount_call(self.policy.counter, call) if counters.wrapper_versions.on else call())


class HttpRequest(ClientRequest):
    """A request as events and `before_retry` see it."""

    __slots__ = ("_settings",)

    def __init__(self, request: Any, settings: ClientSettings) -> None:
        library = settings.library
        super().__init__(request, library.target_of, lambda response: library.read_response(response)[0])
        self._settings = settings

    def make(self, policy: Policy, deadline: float | None, since: int | None, outer_deadline: bool) -> HttpCall:
        """Make the machine of the call."""
        call = HttpCall(policy, deadline, since, outer_deadline)
        call.request, call.settings = self, self._settings
        return call


class HttpCall(ClientCall):
    """A call whose last response carries its report."""

    __slots__ = ("settings",)

    settings: ClientSettings

    def give_up(self, stop: Stop, outcome: Outcome | Exception) -> Exception | None:
        """End the call."""
        response = outcome.result if isinstance(outcome, Outcome) else None
        if response is not None:
            report = Report(self.policy.name, self.attempts, self.waited, stop.reason)
            self.settings.mark_given_up(response, self.policy, report)
        return super().give_up(stop, outcome)


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


def is_rewindable(body: Any) -> bool:
    """Return whether this is a file that can be read again."""
    seekable = getattr(body, "seekable", None)
    return callable(seekable) and bool(seekable())


def drain_timeout(left: float | None) -> float:
    """Return for how many seconds a discarded response may be read, with `left` seconds until the deadline."""
    return DRAIN_SECONDS if left is None else max(0.0, min(left, DRAIN_SECONDS))


def is_judged_by_body(policy: Policy, response: Any, status: int, headers: Mapping[str, str], attempt: int) -> bool:
    """Return whether the JSON body of an error may change the ruling: a quota that is used up, or a hint.

    Not if this response is final in any case: a body that doesn't come in time is lost, and the caller needs it.
    `policy` is the request's, `attempt` the number of the attempt.
    """
    if attempt >= policy.attempt_limit or "json" not in (http.header(headers, "Content-Type") or "").lower():
        return False
    ruling = http.judge(status, headers)
    if ruling is None or not ruling.retry:
        return False
    # a hint in its body makes a 503 safe to repeat
    if not (policy.idempotent or not ruling.reached or status == 503):
        return False
    return all(rule.may_retry(response) for rule in policy.rules.on if isinstance(rule, ClientRules))
