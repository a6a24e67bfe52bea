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
        "x-forwarded-prefix",
        "x-forwarded-proto",
        "x-forwarded-scheme",
        "x-forwarded-server",
        "x-forwarded-ssl",
        "x-original-forwarded-for",
        "x-original-host",
        "x-real-ip",
        "x-client-ip",
        "x-cluster-client-ip",
        "x-azure-clientip",
        "x-envoy-external-address",
        "cf-connecting-ip",
        "fastly-client-ip",
        "fly-client-ip",
        "true-client-ip",
    }
)
"""In lower case."""
