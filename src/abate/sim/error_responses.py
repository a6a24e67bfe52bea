"""The errors of simulated services, with the attributes of an HTTP client's errors.

Each combination of status, Retry-After and exhausted mark is a type of its own, so that a policy can cache its ruling
by type.
"""

from __future__ import annotations

from functools import cache

from abate.decide import http
from abate.decide.outcome import ANSWERED, FATAL, LAYER, Outcome, Ruling
from abate.decide.rules import Rule
from abate.errors import AbateError


class Answer(AbateError):
    """An error response of a simulated service.

    >>> answer(503, retry_after=2.0)().status_code
    503
    """

    status_code: int
    headers: dict[str, str]
    ruling: Ruling
    """The ruling, unless the policy's own rules have one."""


class Simulated(Rule):
    """Judges simulated responses by the HTTP rules; a conflict is retried."""

    def judge(self, outcome: Outcome) -> Ruling | None:
        error = outcome.error
        return error.ruling if isinstance(error, Answer) else None


simulated = Simulated()
"""The default `on` of policies in scenarios."""


def answer(status: int, retry_after: float | None = None, exhausted: bool = False) -> type[Answer]:
    """Return the error type for this status; `exhausted` marks that an inner layer has retried already.

    >>> answer(503) is answer(503, None, exhausted=False), answer(503) is answer(503, exhausted=True)
    (True, False)
    """
    return _made(status, retry_after, exhausted)


@cache  # called with positional arguments only: keyword arguments would be other cache keys
def _made(status: int, retry_after: float | None, exhausted: bool) -> type[Answer]:
    headers = {} if retry_after is None else {"Retry-After": f"{retry_after:.0f}"}
    if exhausted:
        headers["Abate-Exhausted"] = "1"
    ruling = LAYER if exhausted else ANSWERED if status == 409 else http.judge(status) or FATAL
    if retry_after is not None and ruling.retry:
        ruling = Ruling(True, ruling.reason, retry_after, answered=True)
    return type(f"Answer{status}", (Answer,), {"status_code": status, "headers": headers, "ruling": ruling})
