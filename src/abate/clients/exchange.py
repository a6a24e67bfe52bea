"""What every HTTP client shares: which policy a request is sent under, and the headers that travel with it.

A client gives two things, how to send a request and how to read a response, and gets:

* HTTP's own table for responses, behind whatever rules the policy has;
* a request that may not be repeated is sent again only where the failure proves that the server never saw it, and
  one whose body cannot be replayed is never sent again (`Plan`);
* timeouts that learn are told how long connects and requests took, and which of them were cut off (`Stopwatch`);
* a response that is not the final one is let go before every wait, so that its connection serves others meanwhile: it
  is read to its end if that is near (`READ_AT_MOST` bytes, `reading_time`), which keeps the connection and the body;
  otherwise the connection is closed;
* an attempt that is about to be sent after its deadline, be it the first one or one that has waited for too long, ends
  with the error that the library has for a connection that took too long, and is not sent (`late`);
* ``Abate-Attempt`` and ``Abate-Deadline`` on requests, and ``Abate-Secret`` to the hosts that it is for. Those that the
  program itself has put on a request are not sent: a program that passes its own callers' headers on would lend them
  its name;
* a response with ``Abate-Exhausted: 1`` is not retried: a service behind it has done so. Every upstream is believed
  that: it ends the one call that it answers, as it could by a status of 400, and no other.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from ipaddress import IPv6Address
from typing import Any, Literal, Protocol, Self

from abate import clock
from abate.call.machine import EARLY
from abate.call.policy import Policy
from abate.clients.trust import SECRET, Secret
from abate.decide import http
from abate.decide.outcome import LAYER, Outcome, Ruling
from abate.decide.rules import Rule
from abate.redact import shown
from abate.schedule.deadlines import passed, remaining

ATTEMPT = "Abate-Attempt"
DEADLINE = "Abate-Deadline"
EXHAUSTED = "Abate-Exhausted"

LONGEST_WORD = 100
"""Characters of a header's value that are looked at for a word."""
HOST = re.compile(r"(\*\.)?[\w-]+(\.[\w-]+)*")
"""A host's name, or with a star those below it."""

READ_AT_MOST, READ_FOR = 65_536, 0.25
"""Bytes and seconds: how much of a response that is let go is read to keep its connection; a longer one loses it."""
CUT_OFF = "the body was given up together with the connection, which others may need while a call waits"
"""What the error says to code that reads the body of such a response after all."""


class Timeouts(Protocol):
    """Timeouts that follow what is observed, as `abate.Timeouts` do.

    Those that have them are told by ``observe_connect(seconds)`` how long it took to open a connection, and by
    ``timed_out(seconds)`` and ``connect_timed_out(seconds)`` of what was cut off. See `Stopwatch` for what is measured.
    """

    def request(self) -> float:
        """Seconds to wait for a response."""
        ...

    def connect(self) -> float:
        """Seconds to wait for a connection."""
        ...

    def observe(self, seconds: float) -> object:
        """A good response took this long to come."""
        ...


Key = Literal["host"] | Callable[[Any], Hashable] | None
"""What a client's requests are keyed by (see `Policy.keyed`): the host and port they go to, or a function of the
request; where that answers None, the request has no key."""
KeyOf = Callable[[Any], Hashable]

ReadResponse = Callable[[Any], tuple[int, Mapping[str, str]]]
JudgeError = Callable[[Exception], Ruling | None]


class Stopwatch:
    """Times one attempt and the connect in it, and when it is over, tells the timeouts.

    * A connect lasts until a request can be sent: with its TLS handshake, since the connect timeouts of all libraries
      bound that as well. An attempt on a connection that was open already has none.
    * The request is the rest of the attempt: also the wait for a free connection, but not the connect. That has a
      timeout of its own, and reused connections would teach one that is too short for it.
    * What was cut off is told of too, or the timeouts would learn from the quick ones only. What a deadline cut off
      earlier than the timeouts would have is not: how much time a caller has says nothing about the server.
    """

    __slots__ = ("_began", "_connect", "_judge", "_step", "_timeouts")

    def __init__(self, timeouts: Timeouts, judge_error: JudgeError) -> None:
        self._timeouts = timeouts
        self._judge = judge_error
        self._connect: float | None = None  # seconds, of the steps that are done
        self._step: float | None = None  # when the step began that is not
        self._began = clock.current().now()

    def connecting(self) -> None:
        """A connect begins, or a further step of it."""
        self._step = clock.current().now()

    def connected(self) -> None:
        """It is done."""
        assert self._step is not None
        self._connect = (self._connect or 0.0) + clock.current().now() - self._step
        self._step = None

    def answered(self, status: int) -> None:
        """A response came; a quick bad one says nothing about how long good ones take."""
        if status < 400:
            self._timeouts.observe(self._request())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        ruling = self._judge(error) if isinstance(error, Exception) else None
        cut_off = ruling is not None and ruling.overloaded
        if self._step is not None:
            seconds = (self._connect or 0.0) + clock.current().now() - self._step
            if cut_off and self._had_its_time(seconds, self._timeouts.connect):
                self._tell("connect_timed_out", seconds)
            return
        if self._connect is not None:
            self._tell("observe_connect", self._connect)
        if cut_off and self._had_its_time(self._request(), self._timeouts.request):
            self._tell("timed_out", self._request())

    def _had_its_time(self, seconds: float, timeout: Callable[[], float]) -> bool:
        """Was it the timeout, and not a nearer deadline, that cut this off?"""
        left = remaining()
        return left is None or left > EARLY or seconds >= timeout()

    def _request(self) -> float:
        return max(0.0, clock.current().now() - self._began - (self._connect or 0.0))  # differences are rounded

    def _tell(self, name: str, seconds: float) -> None:
        tell = getattr(self._timeouts, name, None)
        if tell is not None:
            tell(seconds)


class OnErrors(Rule):
    """The errors of a client's library, which knows best whether the server has seen the request."""

    judge_error: JudgeError

    def judge(self, outcome: Outcome) -> Ruling | None:
        return None if outcome.error is None else self.judge_error(outcome.error)


class OnResponses(Rule):
    """A client's responses, by HTTP's table."""

    read: ReadResponse

    reads_results = True

    def judge(self, outcome: Outcome) -> Ruling | None:
        if outcome.error is not None:
            return None
        status, headers = self.read(outcome.result)
        if status >= 400 and gave_up(http.header(headers, EXHAUSTED)):
            return LAYER
        return http.judge(status, headers)


class Plan:
    """The policies that a client's requests are sent under, made once for each client.

    Asked in turn are the client about errors of its library, the policy's own `on`, and HTTP's table about
    responses. All share the policy's budget, gate and shelter, and so do those of each key.
    """

    __slots__ = ("_once", "_repeatable", "_unsafe", "policy")

    def __init__(self, policy: Policy, judge_error: JudgeError, read: ReadResponse) -> None:
        if not isinstance(policy, Policy):
            raise TypeError(f"policy must be a Policy, not {shown(policy)}")
        self.policy = policy
        fitted = policy.also(OnResponses(read), before=(OnErrors(judge_error),))
        declared = policy.idempotent
        self._repeatable = fitted.replace(idempotent=True if declared is None else declared)
        self._unsafe = fitted.replace(idempotent=False if declared is None else declared)
        self._once = fitted.replace(attempts=1)

    def for_request(self, method: str, headers: Mapping[str, str], *, replayable: bool, key: Hashable = None) -> Policy:
        """The policy for one request; that of its key, if it has one."""
        if not replayable:
            fitting = self._once
        else:
            fitting = self._repeatable if http.repeatable(method, headers) else self._unsafe
        return fitting if key is None else fitting.keyed(key)


def key_of(key: Key, host: KeyOf) -> KeyOf:
    """The function that tells a request's key, where `host` tells the host and port that it goes to."""
    if key is None:
        return _no_key
    if key == "host":
        return host
    if not callable(key):
        raise TypeError(f'key must be "host" or a function of the request, not {key!r}')
    return key


def _no_key(request: Any) -> None:
    """Requests are not told apart."""


def new_key() -> str:
    """A fresh ``Idempotency-Key``: given to a request once, it is the same on every attempt."""
    return str(uuid.uuid4())


def gave_up(exhausted: str | None) -> bool:
    """Does a response's ``Abate-Exhausted`` say that retrying is of no use? It may have come more than once.

    >>> gave_up("1"), gave_up("1, 1"), gave_up("0"), gave_up(None)
    (True, True, False, False)
    """
    return exhausted is not None and any(part.strip() == "1" for part in exhausted[:LONGEST_WORD].split(","))


def travelling(attempt: int, secret: Secret | None = None) -> dict[str, str]:
    """The headers of one attempt: its number, the milliseconds that are left, if there is a deadline, and a secret."""
    left = remaining()
    headers = {ATTEMPT: str(attempt)}
    if left is not None:
        headers[DEADLINE] = str(int(left * 1000))
    if secret is not None:
        headers[SECRET] = secret.text
    return headers


class Secrets:
    """Which hosts are sent a secret: an HTTP client's setting ``secrets=``.

    A client follows redirects to wherever they lead, so a secret is bound to hosts: to a name, or with ``*.`` before it
    to all names below it. The first that fits counts.

    >>> ours = Secrets({"*.shop.internal": Secret("an-example-of-24-letters")})
    >>> ours.to("orders.shop.internal"), ours.to("shop.internal.example")
    (Secret('…'), None)
    """

    __slots__ = ("given",)

    def __init__(self, given: Mapping[str, Secret] | None) -> None:
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"secrets must map hosts to Secrets, not be a {type(given).__name__}")
        self.given: dict[str, Secret] = {}
        for host, secret in (given or {}).items():
            name = _name(host) if isinstance(host, str) else ""
            if not HOST.fullmatch(name) and not _is_ipv6(name):
                raise ValueError(
                    f'secrets must name hosts such as "orders.internal" or "*.internal", not {shown(host)}'
                )
            if not isinstance(secret, Secret):
                raise TypeError(f"secrets[{host!r}] must be a Secret, not a {type(secret).__name__}")
            self.given[name] = secret

    def __reduce__(self) -> tuple[type[Secrets], tuple[dict[str, Secret]]]:
        return type(self), (self.given,)

    def to(self, host: str | None) -> Secret | None:
        """The secret for requests to this host."""
        if not self.given or not host:
            return None
        name = _name(host)
        return next((secret for known, secret in self.given.items() if _fits(name, known)), None)

    def outfit(self, headers: MutableMapping[str, str], host: str | None, attempt: int) -> None:
        """Give the request of one attempt the headers that travel with it, and only those."""
        own = travelling(attempt, self.to(host))
        for name in (DEADLINE, SECRET):
            if name not in own:
                headers.pop(name, None)
        headers.update(own)


def _name(host: str) -> str:
    """A host as it is compared."""
    return host.lower().removesuffix(".").removeprefix("[").removesuffix("]")


def _is_ipv6(name: str) -> bool:
    try:
        IPv6Address(name)
    except ValueError:
        return False
    return True


def _fits(name: str, known: str) -> bool:
    return name.endswith(known[1:]) if known.startswith("*.") else name == known


def reading_time(left: float | None) -> float:
    """Seconds for which a response that is let go may be read, where a call has so many left until its deadline."""
    return READ_FOR if left is None else max(0.0, min(left, READ_FOR))


TOO_LATE = "nothing was sent: the deadline had passed"
"""What the error says of an attempt that came too late."""

late = passed
"""Has the deadline passed? Each client asks right before it sends an attempt: a timeout that is cut to the shortest one
that its library takes is still long enough to send a request."""


def within(timeout: float | None) -> float | None:
    """A timeout of the library's, in seconds, cut to what remains until the deadline; None means no bound."""
    left = remaining()
    if left is None or timeout is None:
        return timeout if left is None else left
    return min(left, timeout)
