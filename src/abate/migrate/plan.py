"""What a migrated policy is to say, and how it is written: settings, comments, and what changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

ORDER = (
    "on",
    "unless",
    "name",
    "max_attempts",
    "timeout",
    "backoff",
    "budget",
    "idempotent",
    "raises",
    "before_retry",
)
"""The order in which settings are written."""
FOREVER = "1_000_000_000"
"""As many attempts as code makes that retries for ever: abate has no endless retries."""
MANY_ATTEMPTS = 100
"""A call with more attempts than this would be ended by a default budget."""


class NotMapped(Exception):
    """A piece of code has no equivalent, or can't be understood; its text says why."""


@dataclass(frozen=True)
class Number:
    """A number as code, with its value if that is written in the code itself.

    >>> Number.of(0.1 + 0.2), Number("LIMIT", None) / 1000
    (Number('0.3'), Number('LIMIT / 1000'))
    """

    code: str
    value: float | None

    @staticmethod
    def of(value: float) -> Number:
        """Return a number that was computed."""
        rounded = round(value, 9)
        return Number(repr(float(rounded)), rounded)

    def __truediv__(self, divisor: int) -> Number:
        return Number(f"{self.code} / {divisor}", None) if self.value is None else Number.of(self.value / divisor)

    def __add__(self, other: Number) -> Number:
        if self.value is None or other.value is None:
            return Number(f"{self.code} + {other.code}", None)
        return Number.of(self.value + other.value)

    def __repr__(self) -> str:
        return f"Number({self.code!r})"


@dataclass
class Plan:
    """The settings of one policy as code, and what its user must know."""

    settings: dict[str, str] = field(default_factory=dict)
    safer: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    modules: set[str] = field(default_factory=set)

    def say_interruptions(self) -> None:
        """Say that no policy retries what is not an `Exception`."""
        self.safer.append("KeyboardInterrupt, SystemExit and cancellation are not retried any more")

    def never_ends(self, peer: str, attempts: str = FOREVER) -> None:
        """Bound nothing, because the old code bounds nothing, or may do so."""
        self.settings["max_attempts"] = attempts
        self.settings["budget"] = "abate.Budget.unlimited()"
        retries = "retries" if attempts == FOREVER else "may retry"
        self.advice.append(
            f"this {retries} for ever, as it did with {peer}: choose a max_attempts or a timeout, and drop the"
            " unlimited budget"
        )


def call_code(
    callee: str,
    arguments: Sequence[str],
    commented: Sequence[str],
    *,
    indent: str,
    step: str,
    column: int,
    limit: int,
    spread: bool,
) -> str:
    """Return the code of a call, on one line if it was on one and fits; `commented` are its lines if it has comments.

    >>> print(call_code("f", ["a=1"], ["# why", "a=1,"], indent="", step="    ", column=0, limit=88, spread=False))
    f(
        # why
        a=1,
    )
    """
    line = f"{callee}({', '.join(arguments)})"
    if not (spread or commented) and "\n" not in line and column + len(line) <= limit:
        return line
    lines = commented or [f"{argument}," for argument in arguments]
    return f"{callee}(\n" + "".join(f"{indent}{step}{line}\n" for line in lines) + f"{indent})"
