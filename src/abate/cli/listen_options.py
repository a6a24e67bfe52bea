"""Options of commands that listen: the address, and the token of the page."""

from __future__ import annotations

import argparse
import os
from contextlib import AbstractContextManager

from abate.http_server import is_loopback

TOKEN = "ABATE_PAGE_TOKEN"
LOOPBACK = "127.0.0.1"
EXAMPLE = "what this prints: python -c 'import secrets; print(secrets.token_urlsafe())'"
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
    """Return the token of the page: the option's, or the environment's; an empty one counts as set."""
    return os.environ.get(TOKEN) if option is None else option


def serving_page(host: str, port: int, option: str | None = None) -> AbstractContextManager[str]:
    """Return a context that serves the page; raise ValueError for a missing or bad token."""
    from abate.observe.page import serving
    from abate.observe.page.sign_in import MAX_TOKEN, MIN_TOKEN

    token = page_token(option)
    if token is None and not is_loopback(host):
        where = host or "every address"
        raise ValueError(
            f"the page needs a token, as {where} can be reached from other machines: set {TOKEN} to {EXAMPLE}"
        )
    if token is not None and not MIN_TOKEN <= len(token.strip()) <= len(token) <= MAX_TOKEN:
        name = TOKEN if option is None else "--token"
        state = f"has {len(token.strip())}" if token.strip() else "is empty"
        raise ValueError(
            f"{name} {state}: expected a token of {MIN_TOKEN} to {MAX_TOKEN} characters, such as {EXAMPLE}"
        )
    return serving(host, port, token)
