"""Where a command listens, and the token that guards its page."""

from __future__ import annotations

import argparse
import os

TOKEN = "ABATE_PAGE_TOKEN"
LOOPBACK = "127.0.0.1"
EXPECTED = "a port from 0 to 65535, such as 8081, or with an address: 0.0.0.0:8081, [::1]:8081, or :8081 for all"


def listen_address(text: str) -> tuple[str, int]:
    """Return the host and the port in a command's option; a port alone is on loopback, an empty host is all addresses.

    >>> listen_address("8081"), listen_address("[::]:8081"), listen_address(":8081")
    (('127.0.0.1', 8081), ('::', 8081), ('', 8081))
    """
    host, colon, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise argparse.ArgumentTypeError(f"expected {EXPECTED}, not {text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host or "[" in host or "]" in host:
        raise argparse.ArgumentTypeError(f"expected {EXPECTED}, not {text!r}")
    return (host if colon else LOOPBACK), int(port)


def page_token(option: str | None = None) -> str | None:
    """Return the token of the page: the option's, or the environment's; one that is set and empty is not left out."""
    return os.environ.get(TOKEN) if option is None else option
