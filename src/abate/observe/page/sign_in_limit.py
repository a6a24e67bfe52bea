"""Limit how fast tokens can be tried: a few at once, then one by one, for each peer.

A try that must wait is checked after its delay, so that it reveals nothing before. The state is one number per peer,
for a bounded number of peers; a bounded number of tries wait, and further ones are refused.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

FREE = 5
"""Wrong tokens in a row without a delay."""
PAUSE = 1.0
"""Seconds between two tries of one peer after that."""
MAX_WAIT = 5.0
"""Seconds that a try waits at most."""
MAX_PEERS = 1000
"""Peers that are remembered; the least recent one is forgotten."""
MAX_WAITING = 32
"""Tries that wait at a time, of all peers."""


class SignInLimit:
    """Counts tries by peer. The caller passes the time.

    >>> tries = SignInLimit()
    >>> [tries.count_try("192.0.2.7", now=0.0) for _ in range(11)]
    [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, None]
    >>> tries.count_try("192.0.2.8", now=0.0), tries.count_try("192.0.2.7", now=100.0)
    (0.0, 0.0)
    """

    __slots__ = ("_paid", "waiting")

    def __init__(self) -> None:
        self._paid: OrderedDict[str, float] = OrderedDict()
        """For each peer the instant until which its tries so far delay the next."""
        self.waiting = 0

    def count_try(self, peer: str, now: float) -> float | None:
        """Count a try, and return the seconds until it may be checked; None if it is refused."""
        peer = _network(peer)
        paid = max(now, self._paid.get(peer, now))
        wait = max(0.0, paid - now - (FREE - 1) * PAUSE)
        if wait > MAX_WAIT or (wait and self.waiting >= MAX_WAITING):
            return None
        self._paid[peer] = paid + PAUSE
        self._paid.move_to_end(peer)
        if len(self._paid) > MAX_PEERS:
            self._paid.popitem(last=False)
        return wait

    def forgive(self, peer: str) -> None:
        """Do not count the last try: its token was right."""
        peer = _network(peer)
        if peer in self._paid:
            self._paid[peer] -= PAUSE

    def __len__(self) -> int:
        return len(self._paid)


def _network(peer: str) -> str:
    """Return the network that one visitor controls: an IPv4 address, or the /64 of an IPv6 host."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer[:64]
    if isinstance(address, ipaddress.IPv4Address) or address.ipv4_mapped is not None:
        return str(address)
    return str(ipaddress.IPv6Network((address, 64), strict=False).network_address)
