"""The headers that show that a request came through a proxy.

The peer of such a request is the proxy, not the sender. The live page and the trust in callers use this list.
"""

from __future__ import annotations

HEADERS = frozenset(
    {
        "forwarded",
        "via",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-proto",
        "x-real-ip",
        "x-client-ip",
        "cf-connecting-ip",
        "true-client-ip",
    }
)
"""In lower case."""
