"""The off switch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from abate.call.off_switch import switch_off, switch_on


@contextmanager
def off() -> Iterator[None]:
    """Switch retries off in this context, and in tasks started here, until the block ends: calls make one attempt.

    >>> import abate
    >>> flaky = abate.testing.Script(ConnectionError("gone"), "fine")
    >>> with off():
    ...     abate.Policy(on=ConnectionError).call(flaky)
    Traceback (most recent call last):
    ConnectionError: gone
    ...
    """
    scope = switch_off()
    try:
        yield
    finally:
        switch_on(scope)
