"""Reads the URL of a store: from the command line, the environment or a file.

    --store sqlite:///work.db          the URL itself; without a password, as others can see command lines
    --store env:ABATE_STORE            the value of an environment variable
    --store file:/run/secrets/store    the content of a file, as Docker and Kubernetes mount secrets

All commands that take a URL do it in this way. The URL is never printed.
"""

from __future__ import annotations

import os

from abate.errors import AbateError

MAX_BYTES = 16_384
"""Maximum bytes of a file with a URL."""
HELP = "such as sqlite:///work.db, or env:NAME or file:PATH that hold the URL"


def store_url(given: str) -> str:
    """Return the URL that an argument is, or names.

    >>> store_url("sqlite:///work.db")
    'sqlite:///work.db'
    >>> store_url("env:NO_SUCH_VARIABLE")
    Traceback (most recent call last):
    abate.errors.AbateError: the environment variable NO_SUCH_VARIABLE is not set: expected the URL of a store in it
    """
    kind, _, where = given.partition(":")
    if kind == "env":
        url, place = os.environ.get(where, "").strip(), f"the environment variable {where}"
        if not url:
            state = "empty" if where in os.environ else "not set"
            raise AbateError(f"{place} is {state}: expected the URL of a store in it")
    elif kind == "file":
        url, place = _content(where), f"the file {where}"
        if not url:
            raise AbateError(f"{place} is empty: expected the URL of a store in it")
    else:
        return given
    if len(url.split()) > 1 or url.startswith(("env:", "file:")):
        raise AbateError(f"{place} must hold the URL of a store and nothing else")
    return url


def _content(path: str) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise AbateError(f"the file {path} is longer than {MAX_BYTES} bytes: expected the URL of a store in it")
        return content.decode().strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise AbateError(f"the file {path} can't be read: {why}") from None
