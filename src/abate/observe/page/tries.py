"""How fast tokens can be tried: a few at once, and after that one by one, each peer for itself.

A try that has to wait is judged when its turn has come, so a wrong one tells no more than a right one until then. The
state is one number per peer, of a bounded number of peers; so many wait at most, and one more is refused.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

FREE = 5
"""Wrong tokens in a row that cost no time."""
PAUSE = 1.0
"""Seconds between two turns of one peer after that."""
LONGEST_WAIT = 5.0
"""Seconds that a try waits for its turn at most."""
MOST_PEERS = 1000
"""Peers that are remembered; the one heard of longest ago makes room."""
MOST_WAITING = 32
"""Tries that wait at a time, of all peers."""


class Tries:
    """Counts tries by peer. The caller tells the time.

    >>> tries = Tries()
    >>> [tries.turn("192.0.2.7", now=0.0) for _ in range(11)]
    [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, None]
    >>> tries.turn("192.0.2.8", now=0.0), tries.turn("192.0.2.7", now=100.0)
    (0.0, 0.0)
    """

    __slots__ = ("_paid", "waiting")

    def __init__(self) -> None:
        self._paid: OrderedDict[str, float] = OrderedDict()
        """Of each peer: the instant by which its tries so far are paid for."""
        self.waiting = 0

    def turn(self, peer: str, now: float) -> float | None:
        """Count a try, and return the seconds until it may be judged; None where it is one too many."""
        peer = _network(peer)
        paid = max(now, self._paid.get(peer, now))
        wait = max(0.0, paid - now - (FREE - 1) * PAUSE)
        if wait > LONGEST_WAIT or (wait and self.waiting >= MOST_WAITING):
            return None
        self._paid[peer] = paid + PAUSE
        self._paid.move_to_end(peer)
        if len(self._paid) > MOST_PEERS:
            self._paid.popitem(last=False)
        return wait

    def right(self, peer: str) -> None:
        """The token of the last try was right: it does not count."""
        peer = _network(peer)
        if peer in self._paid:
            self._paid[peer] -= PAUSE

    def __len__(self) -> int:
        return len(self._paid)


def _network(peer: str) -> str:
    """Return what one visitor can be told by: an IPv4 address, or the /64 that an IPv6 host can choose from."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer[:64]
    if isinstance(address, ipaddress.IPv4Address) or address.ipv4_mapped is not None:
        return str(address)
    return str(ipaddress.IPv6Network((address, 64), strict=False).network_address)
