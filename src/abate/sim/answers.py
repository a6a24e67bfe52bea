"""What simulated services answer when they fail: errors that read like those of an HTTP client.

Each combination of status, hint and mark is a type of its own, so that a policy which has judged one knows them all.
"""

from __future__ import annotations

from functools import cache

from abate.decide import http
from abate.decide.outcome import ANSWERED, FATAL, LAYER, Outcome, Ruling
from abate.decide.rules import Rule
from abate.errors import AbateError


class Answer(AbateError):
    """A simulated service has answered that it failed.

    >>> answer(503, retry_after=2.0)().status_code
    503
    """

    status_code: int
    headers: dict[str, str]
    ruling: Ruling
    """What this means where a policy's own rules say nothing about it."""


class Simulated(Rule):
    """Judges the answers of simulated services by HTTP's table; a conflict is worth another attempt."""

    def judge(self, outcome: Outcome) -> Ruling | None:
        error = outcome.error
        return error.ruling if isinstance(error, Answer) else None


simulated = Simulated()
"""What a policy in a scenario retries, unless it says so itself."""


def answer(status: int, retry_after: float | None = None, exhausted: bool = False) -> type[Answer]:
    """The type of errors with this status; `exhausted` says that a layer further in has retried already.

    >>> answer(503) is answer(503, None, exhausted=False), answer(503) is answer(503, exhausted=True)
    (True, False)
    """
    return _made(status, retry_after, exhausted)


@cache  # which would tell arguments by place from those by name, so it is asked in one way only
def _made(status: int, retry_after: float | None, exhausted: bool) -> type[Answer]:
    headers = {} if retry_after is None else {"Retry-After": f"{retry_after:.0f}"}
    if exhausted:
        headers["Abate-Exhausted"] = "1"
    ruling = LAYER if exhausted else ANSWERED if status == 409 else http.judge(status) or FATAL
    if retry_after is not None and ruling.retry:
        ruling = Ruling(True, ruling.reason, retry_after, answered=True)
    return type(f"Answer{status}", (Answer,), {"status_code": status, "headers": headers, "ruling": ruling})
