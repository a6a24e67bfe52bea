"""Which callers a service trusts: the setting ``trusted=`` of the ASGI and WSGI middleware and of gRPC servers.

A caller's deadline makes a service stop early, so strangers must not be able to set one. `Trust` decides for one
request whether its abate headers count. No caller is trusted by default, and in doubt the answer is no.

* **A network** is compared with the peer of the connection. The peer of a request through a proxy is the proxy, and
  some servers replace the peer's address by one from a header: neither says anything about the caller. So a request
  with a header that proxies add (`abate.proxy_headers`) is not trusted by its network, and neither is an address
  without a port, which only headers have.
* **A secret** is compared in constant time with the header ``Abate-Secret``.
* **A function** is called with the request. If it raises, the answer is no.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hmac import compare_digest
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from math import inf
from time import monotonic
from typing import Any, TypeAlias

from abate.functions import is_coroutine_function, is_coroutine_object, is_generator_function
from abate.logs import Log

__all__ = ["Secret"]

SECRET = "Abate-Secret"
MIN_SECRET_CHARS = 16
"""A shorter secret can be guessed."""
LOG_INTERVAL = 60.0
"""Seconds between two log lines about functions that fail."""
UNIX = "unix"
"""The network of callers connected by a unix socket."""

ADDRESS_LETTERS, ADDRESS_MARKS = frozenset("0123456789abcdefABCDEF.:/"), frozenset(".:")

Network: TypeAlias = IPv4Network | IPv6Network
Rule: TypeAlias = "Callable[[Any], object] | str | IPv4Address | IPv6Address | Network | Secret"
Trusted: TypeAlias = "Rule | Iterable[Rule] | None"

EXPECTED = (
    'a function of the request, a network such as "10.0.0.0/8" or "unix", a Secret, or several of these in a list'
)


class Secret:
    """A text known only to a service and its callers. ``repr`` does not show it.

    A service trusts callers that send it (``trusted=Secret(…)``; during a change ``trusted=[Secret(new),
    Secret(old)]``). Clients send it to the configured hosts: ``secrets={"orders.internal": Secret(…)}``.

    >>> Secret("an-example-of-24-letters")
    Secret('…')
    >>> Secret("short")
    Traceback (most recent call last):
    ValueError: a Secret must have at least 16 characters, not 5
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        # errors do not show the value: they end up in logs
        if not isinstance(text, str):
            raise TypeError(f"a Secret must be a str, not {type(text).__name__}")
        if len(text) < MIN_SECRET_CHARS:
            raise ValueError(f"a Secret must have at least {MIN_SECRET_CHARS} characters, not {len(text)}")
        if not all("!" <= letter <= "~" for letter in text):
            raise ValueError("a Secret must consist of visible ASCII characters, as it is sent in a header")
        self.text = text

    def __repr__(self) -> str:
        return "Secret('…')"

    def equals(self, sent: str) -> bool:
        """Compare in a time that does not depend on how much matches."""
        return compare_digest(self.text.encode(), sent.encode("utf-8", "surrogatepass"))


class Caller:
    """What is known about the sender of one request.

    * `request`: the argument for functions.
    * `peer`: the address at the other end of the connection, `UNIX`, or None if it is not known.
    * `secret`: the value of ``Abate-Secret``; None if there was none, or several.
    """

    __slots__ = ("peer", "request", "secret")

    def __init__(self, request: Any, peer: str | None, secret: str | None) -> None:
        self.request = request
        self.peer = peer
        self.secret = secret


class Trust:
    """The setting ``trusted=``: trusts a caller if any of its rules does.

    >>> Trust(["10.0.0.0/8", "unix"]).believes(Caller(None, "10.1.2.3", None))
    True
    >>> Trust(None).believes(Caller(None, "127.0.0.1", None))
    False
    """

    __slots__ = ("_functions", "_networks", "_next_log", "_secrets", "_unix", "_unlogged")

    def __init__(self, trusted: Trusted) -> None:
        self._functions: list[Callable[[Any], object]] = []
        self._networks: list[Network] = []
        self._secrets: list[Secret] = []
        self._unix = False
        self._next_log = -inf
        self._unlogged = 0
        """Failures of a function that were not logged."""
        for rule in _rules(trusted):
            self._add(rule)

    def _add(self, rule: object) -> None:
        if isinstance(rule, Secret):
            self._secrets.append(rule)
        elif isinstance(rule, str) and rule == UNIX:
            self._unix = True
        elif isinstance(rule, (str, IPv4Address, IPv6Address, IPv4Network, IPv6Network)):
            self._networks.append(_network(rule))
        elif not callable(rule) or isinstance(rule, type):
            raise TypeError(f"trusted must be {EXPECTED}, not {_kind(rule)}")
        elif is_coroutine_function(rule) or is_generator_function(rule):
            raise TypeError(
                f"trusted must be a plain function: {rule!r} would answer with an object that is always true"
            )
        else:
            self._functions.append(rule)

    def believes(self, caller: Caller) -> bool:
        """Return whether the headers of this caller count."""
        return (
            self._knows_secret(caller.secret) or self._knows_peer(caller.peer) or self._function_agrees(caller.request)
        )

    def _knows_secret(self, sent: str | None) -> bool:
        # compare all, so that the time does not show which one matches
        return sent is not None and sum(secret.equals(sent) for secret in self._secrets) > 0

    def _knows_peer(self, peer: str | None) -> bool:
        if peer == UNIX:
            return self._unix
        if peer is None or not self._networks:
            return False
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return any(address in network or (mapped is not None and mapped in network) for network in self._networks)

    def _function_agrees(self, request: Any) -> bool:
        for function in self._functions:
            try:
                answer = function(request)
                if is_coroutine_object(answer):
                    answer.close()  # type: ignore[attr-defined]
                    raise TypeError("it returned a coroutine: trusted must be a plain function")
                if answer:
                    return True
            except Exception as error:
                self._log_failure(function, error)
        return False

    def _log_failure(self, function: object, error: Exception) -> None:
        """Log a failure, once in a while: callers choose how many there are."""
        now = monotonic()
        if now < self._next_log:
            self._unlogged += 1
            return
        self._next_log = now + LOG_INTERVAL
        unsaid, self._unlogged = self._unlogged, 0
        text = "trusted=%r failed: the caller is not trusted (and %d others before)"
        Log("abate").error(text, function, unsaid, exc_info=error)


def _rules(trusted: object) -> list[object]:
    if trusted is None:
        return []
    if isinstance(trusted, (bytes, bytearray, Mapping)):
        raise TypeError(f"trusted must be {EXPECTED}, not {_kind(trusted)}")
    if isinstance(trusted, (str, IPv4Network, IPv6Network)) or callable(trusted):
        return [trusted]  # a network is iterable: address by address
    if isinstance(trusted, Iterable):
        rules = list(trusted)
        if not rules:
            raise ValueError("trusted must not be empty: leave it out, or say None, to trust no caller")
        return rules
    return [trusted]


def _kind(thing: object) -> str:
    """Describe an invalid rule. Of bytes and containers only the type is shown: they may be a secret."""
    return repr(thing) if thing is None or isinstance(thing, (int, float, type)) else f"a {type(thing).__name__}"


def _network(rule: str | IPv4Address | IPv6Address | Network) -> Network:
    try:
        return ip_network(rule)
    except ValueError as error:
        # a secret given without `Secret` must not end up in a log: only what looks like an address is shown
        text = str(rule)
        if set(text) <= ADDRESS_LETTERS and not ADDRESS_MARKS.isdisjoint(text):
            raise ValueError(f"trusted must be {EXPECTED}, not {text!r}: {error}") from None
        raise ValueError(f"trusted must be {EXPECTED}, not a text that is no network; write Secret(…)") from None
