"""Rules, and the findings that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from abate.errors import AbateError
from abate.frozen import Frozen

if TYPE_CHECKING:
    from abate.audit.program import Program

SEVERITIES = ("note", "warning", "error")
"""From the least severe. These are the levels of SARIF, too."""


class Spot(Frozen):
    """A place in the code, and what a rule has to say about it."""

    path: str
    line: int
    column: int
    last_line: int
    message: str
    library: str = ""
    """Selects the fix in terms of a library."""


class Rule(Frozen):
    """A rule: what it looks for, why that hurts, and what to do about it."""

    id: str
    severity: str
    title: str
    outage: str
    """What happens in an outage."""
    abate: str
    """The fix with abate."""
    fixes: Mapping[str, str]
    """The fix in terms of each library; the one under ``""`` is for all others."""
    find: Callable[[Program], Iterator[Spot]]

    def fix(self, library: str) -> str:
        """Return the fix in terms of a library."""
        return self.fixes.get(library) or self.fixes[""]


def rule(
    id: str, severity: str, title: str, *, outage: str, abate: str, fixes: Mapping[str, str]
) -> Callable[[Callable[[Program], Iterator[Spot]]], Rule]:
    """Make a function that yields spots a rule."""
    if "" not in fixes:
        raise AbateError(f"rule {id} has no fix for other libraries: expected one under ''")
    return lambda find: Rule(id, severity, title, outage, abate, fixes, find)


class Finding(Frozen):
    """A fault at a place in the code."""

    rule: Rule
    severity: str
    spot: Spot
    code: str = ""
    """The line of code."""

    @property
    def place(self) -> tuple[str, int, int, str]:
        """Return the order of findings: by path, line, column and rule."""
        return self.spot.path, self.spot.line, self.spot.column, self.rule.id
