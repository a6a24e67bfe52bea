"""The retries of any library, in one description. Readers make it, rules judge it."""

from __future__ import annotations

import ast
import math
from typing import Literal

from abate.audit.module_index import Function

Jitter = Literal["none", "lost", "some", "unknown"]
"""``lost``: there is some, and at the cap all delays are equal."""


EVERYTHING = frozenset({"Exception", "BaseException", "builtins.Exception", "builtins.BaseException"})
OF_SERVICES = (
    "OSError", "IOError", "ConnectionError", "ConnectionResetError", "ConnectError", "BrokenPipeError", "Timeout",
    "TimeoutError", "TransportError", "RequestError", "RequestException", "HTTPError", "HttpError", "ClientError",
    "APIError", "ApiError", "APIConnectionError", "ServiceUnavailable", "OperationalError", "RpcError",
)  # fmt: skip
"""How the names of errors end that come from a service or the way to it."""


class Wait:
    """The delays between attempts."""

    __slots__ = ("cap", "factor", "first", "grows", "hint", "jitter", "known")
    jitter: Jitter

    def __init__(
        self,
        *,
        first: float | None = None,
        grows: bool = False,
        factor: float = 2.0,
        cap: float | None = math.inf,
        jitter: Jitter = "none",
        hint: bool = False,
        known: bool = True,
    ) -> None:
        self.first, self.grows, self.factor, self.cap = first, grows, factor, cap
        self.jitter, self.hint, self.known = jitter, hint, known

    @property
    def nothing(self) -> bool:
        """Return whether attempts follow each other without a delay."""
        return self.known and not self.grows and self.first == 0 and self.jitter == "none"

    def longest(self, retries: float) -> float | None:
        """Return the delay before a retry, counted from 1, or None if it is not known."""
        if self.first is None or not self.known:
            return None
        if not self.grows:
            return self.first
        try:
            grown = float(self.first * self.factor ** (retries - 1))
        except OverflowError:
            grown = math.inf
        return min(grown, math.inf if self.cap is None else self.cap)

    def total(self, attempts: float) -> float | None:
        """Return the longest sum of the delays between attempts, or None if it is not known."""
        if not math.isfinite(attempts) or attempts > 1000:
            return None
        delays = [self.longest(retry) for retry in range(1, int(attempts))]
        return None if None in delays else sum(delay for delay in delays if delay is not None)


UNKNOWN_WAIT = Wait(known=False, jitter="unknown")
NO_WAIT = Wait(first=0.0)


class Retries:
    """Something that makes attempts until one succeeds: a loop, a decorator, a client."""

    __slots__ = (
        "attempts", "budget", "by_default", "call", "codes", "covered", "errors", "function", "label", "library",
        "methods", "node", "polls", "seconds", "swallows", "wait",
    )  # fmt: skip

    def __init__(
        self,
        library: str,
        label: str,
        node: ast.AST,
        function: Function,
        *,
        attempts: float | None,
        wait: Wait,
        seconds: float | None = None,
        errors: tuple[str, ...] | None = None,
    ) -> None:
        self.library, self.label, self.node, self.function = library, label, node, function
        self.attempts = attempts
        """The first included; infinite without a bound, None if not known."""
        self.seconds = seconds
        """No attempt begins later than this, if it is set."""
        self.wait = wait
        self.errors = errors
        """The resolved names of the errors that are retried; None if not known."""
        self.covered: list[Covered] = []
        self.by_default = False
        """The program has not asked for these retries."""
        self.budget = False
        self.polls = False
        """It repeats while a result is not there yet, not after an error."""
        self.swallows: list[ast.ExceptHandler] = []
        """Handlers of a loop that lead to another attempt."""
        self.methods: tuple[str, ...] | None = None
        """HTTP methods that are retried; None if not known."""
        self.codes: tuple[int, ...] = ()
        """HTTP status codes that are retried."""

    @property
    def unbounded(self) -> bool:
        """Return whether attempts may go on for ever."""
        return self.attempts == math.inf and self.seconds is None

    @property
    def retries(self) -> bool:
        """Return whether there may be more than one attempt."""
        return self.attempts is None or self.attempts > 1


class Covered:
    """Code that is run again: a function, or statements of one."""

    __slots__ = ("function", "nodes")

    def __init__(self, function: Function, nodes: list[ast.stmt] | None = None) -> None:
        self.function = function
        self.nodes = nodes
        """None for the whole function."""
