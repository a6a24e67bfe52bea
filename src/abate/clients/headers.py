"""The HTTP headers that abate sends and reads, on the client's side and on the server's.

* ``Abate-Attempt`` and ``Abate-Deadline`` go out with each attempt, and ``Abate-Secret`` to the hosts it is meant for.
  Values that the program itself put on a request are removed: a program that forwards its callers' headers would
  otherwise vouch for them.
* A response with ``Abate-Exhausted: 1`` is not retried, because a service behind it has retried already. Any upstream
  may send it: it ends only the call that it answers, as a status of 400 would.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from ipaddress import IPv6Address

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


class Secrets:
    """The secret for each host: an HTTP client's setting ``secrets=``.

    A client follows redirects to any host, so each secret belongs to a host name, or to all names of a domain
    (``*.`` before it). The first match counts.

    >>> ours = Secrets({"*.shop.internal": Secret("an-example-of-24-letters")})
    >>> ours.secret_for("orders.shop.internal"), ours.secret_for("shop.internal.example")
    (Secret('…'), None)
    """

    __slots__ = ("given",)

    def __init__(self, given: Mapping[str, Secret] | None) -> None:
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"secrets must map hosts to Secrets, not be a {type(given).__name__}")
        self.given: dict[str, Secret] = {}
        for host, secret in (given or {}).items():
            name = _normalized(host) if isinstance(host, str) else ""
            if not HOST.fullmatch(name) and not _is_ipv6(name):
                raise ValueError(
                    f'secrets must name hosts such as "orders.internal" or "*.internal", not {short_repr(host)}'
                )
            if not isinstance(secret, Secret):
                raise TypeError(f"secrets[{host!r}] must be a Secret, not a {type(secret).__name__}")
            self.given[name] = secret

    def secret_for(self, host: str | None) -> Secret | None:
        """Return the secret for requests to this host."""
        if not self.given or not host:
            return None
        name = _normalized(host)
        return next((secret for known, secret in self.given.items() if _host_matches(name, known)), None)

    def set_headers(self, headers: MutableMapping[str, str], host: str | None, attempt: int) -> None:
        """Set abate's headers on the request of one attempt, and remove those that do not belong on it."""
        own = request_headers(attempt, self.secret_for(host))
        for name in (DEADLINE, SECRET):
            if name not in own:
                headers.pop(name, None)
        headers.update(own)


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
