"""The HTTP headers that abate sends and reads, on the client's side and on the server's.

* ``Abate-Attempt`` and ``Abate-Deadline`` go out with each attempt to our own services, and ``Abate-Secret`` to the
  hosts it is meant for: third parties receive none of them (`PrivateHeaders`). Values that the program itself put on a
  request are removed: a program that forwards its callers' headers would otherwise vouch for them.
* A response with ``Abate-Exhausted: 1`` is not retried, because a service behind it has retried already. Any upstream
  may send it: it ends only the call that it answers, as a status of 400 would.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, MutableMapping
from ipaddress import IPv6Address, ip_address, ip_network

from abate.clients.trust import SECRET, Secret
from abate.redact import short_repr
from abate.schedule.deadlines import remaining

ATTEMPT = "Abate-Attempt"
DEADLINE = "Abate-Deadline"
EXHAUSTED = "Abate-Exhausted"

MAX_VALUE_CHARS = 100
"""Characters of a header's value that are parsed."""
HOST = re.compile(r"(\*\.)?[\w-]+(\.[\w-]+)*")
"""A host name, or ``*.`` and a domain."""
PRIVATE_NETWORKS = tuple(
    ip_network(network)
    for network in (
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "169.254.0.0/16",
        "::1/128",
        "fc00::/7",
        "fe80::/10",
    )
)
"""Loopback, private and link-local addresses: no third party has one."""
PRIVATE_SUFFIXES = (".localhost", ".internal", ".local", ".lan", ".home.arpa", ".svc")
"""The ends of names that no third party has: those of private networks and of clusters."""
NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)")
"""A name whose last label looks like this is an address in an unusual notation."""
MAX_HOSTS = 1000
"""The most hosts of which a client remembers whether they are ours."""


def upstream_gave_up(exhausted: str | None) -> bool:
    """Return whether an ``Abate-Exhausted`` value says not to retry. A repeated header has several values.

    >>> upstream_gave_up("1"), upstream_gave_up("1, 1"), upstream_gave_up("0"), upstream_gave_up(None)
    (True, True, False, False)
    """
    return exhausted is not None and any(part.strip() == "1" for part in exhausted[:MAX_VALUE_CHARS].split(","))


def request_headers(attempt: int, secret: Secret | None = None) -> dict[str, str]:
    """Return the headers of one attempt: its number, the milliseconds until the deadline, and the secret."""
    left = remaining()
    headers = {ATTEMPT: str(attempt)}
    if left is not None:
        headers[DEADLINE] = str(int(left * 1000))
    if secret is not None:
        headers[SECRET] = secret.text
    return headers


class PrivateHeaders:
    """Which hosts receive abate's headers: an HTTP client's settings ``ours=`` and ``secrets=``.

    A client follows redirects to any host, so the host of each request decides.

    * Ours are by default the hosts that can't be third parties (`is_private`), and those in `ours`. An empty `ours`
      means none, not even the private ones.
    * Each secret belongs to a host name, or to all names of a domain (``*.`` before it); the first match counts. Hosts
      that have a secret are ours.

    >>> headers = PrivateHeaders({"*.pay.example": Secret("an-example-of-24-letters")}, ours=["api.shop.example"])
    >>> headers.secret_for("eu.pay.example"), headers.secret_for("pay.example.org")
    (Secret('…'), None)
    >>> [headers.is_ours(host) for host in ("eu.pay.example", "api.shop.example", "10.1.2.3", "api.example")]
    [True, True, True, False]
    """

    __slots__ = ("_none_is_private", "_ours", "known", "secrets")

    def __init__(self, secrets: Mapping[str, Secret] | None = None, ours: Iterable[str] | None = None) -> None:
        if secrets is not None and not isinstance(secrets, Mapping):
            raise TypeError(f"secrets must map hosts to Secrets, not be a {type(secrets).__name__}")
        self.secrets: dict[str, Secret] = {}
        for host, secret in (secrets or {}).items():
            name = _checked("secrets", host)
            if not isinstance(secret, Secret):
                raise TypeError(f"secrets[{host!r}] must be a Secret, not a {type(secret).__name__}")
            self.secrets[name] = secret
        if isinstance(ours, (str, bytes, Mapping)) or not (ours is None or isinstance(ours, Iterable)):
            raise TypeError(f'ours must be a list of hosts such as ("*.shop.example",), not {short_repr(ours)}')
        self._ours = tuple(_checked("ours", host) for host in ours or ())
        self._none_is_private = ours is not None and not self._ours
        self.known: dict[str, bool] = {}
        """What `is_ours` has found, by host: for hot paths, which look here first."""

    def secret_for(self, host: str | None) -> Secret | None:
        """Return the secret for requests to this host."""
        if not self.secrets or not host:
            return None
        name = _normalized(host)
        return next((secret for known, secret in self.secrets.items() if _host_matches(name, known)), None)

    def is_ours(self, host: str | None) -> bool:
        """Return whether requests to this host carry the attempt's number and its deadline."""
        if not host:
            return False
        found = self.known.get(host)
        if found is None:
            name = _normalized(host)
            found = any(_host_matches(name, known) for known in (*self._ours, *self.secrets)) or (
                not self._none_is_private and is_private(host)
            )
            if len(self.known) >= MAX_HOSTS:
                self.known.clear()
            self.known[host] = found
        return found

    def set_headers(self, headers: MutableMapping[str, str], host: str | None, attempt: int) -> None:
        """Set abate's headers on the request of one attempt, and remove those that do not belong on it."""
        own = request_headers(attempt, self.secret_for(host)) if self.is_ours(host) else {}
        for name in (ATTEMPT, DEADLINE, SECRET):
            if name not in own:
                headers.pop(name, None)
        headers.update(own)


def is_private(host: str) -> bool:
    """Return whether a host can't be a third party.

    It is an address of a private network (loopback, RFC 1918, link-local, unique local), a name of a single label, or a
    name under one of `PRIVATE_SUFFIXES`.

    >>> [is_private(host) for host in ("orders", "orders.shop.svc", "127.0.0.1", "[fd00::1]", "api.example", "8.8.8.8")]
    [True, True, True, True, False, False]
    """
    name = _normalized(host)
    try:
        address = ip_address(name)
    except ValueError:
        if NUMERIC.fullmatch(name.rpartition(".")[2]):
            return False
        # a top-level domain may have an address too, and is written with a dot at its end
        return (
            name.endswith(PRIVATE_SUFFIXES)
            or name == "localhost"
            or ("." not in host and HOST.fullmatch(name) is not None)
        )
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return any((mapped or address) in network for network in PRIVATE_NETWORKS)


def _checked(setting: str, host: object) -> str:
    """Return the normalized pattern of a host."""
    name = _normalized(host) if isinstance(host, str) else ""
    if not HOST.fullmatch(name) and not _is_ipv6(name):
        raise ValueError(f'{setting} must name hosts such as "orders.internal" or "*.internal", not {short_repr(host)}')
    return name


def _normalized(host: str) -> str:
    return host.lower().removesuffix(".").removeprefix("[").removesuffix("]")


def _is_ipv6(name: str) -> bool:
    try:
        IPv6Address(name)
    except ValueError:
        return False
    return True


def _host_matches(name: str, known: str) -> bool:
    return name.endswith(known[1:]) if known.startswith("*.") else name == known
