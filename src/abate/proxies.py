"""The headers by which a request can be told to have come through a proxy.

The peer of such a request is the proxy, whoever has sent it: the page and the trust in callers go by this one list.
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
