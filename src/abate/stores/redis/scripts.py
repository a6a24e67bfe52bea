"""Load the Lua scripts of a store in Redis: one for each operation.

A script is sent once, and called by its digest from then on. It is atomic, and Redis replicates its writes, not its
text. Each script does a bounded amount of work: at most `BATCH` messages, independent of the number of keys in the
server. Constants of the rules are prepended to the scripts from their Python definitions, so each is defined once.
"""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files
from typing import Final

from abate.admit.sliding_window import MAX_PER_SLOT, SLOTS
from abate.stores.encoding import MAX_ATTRIBUTES_BYTES, MAX_PRIORITY, MAX_SHOWN_BYTES
from abate.stores.fleet import grant_rules, shelter_rules, sync_requests
from abate.work.key_queue import FAIRNESS_TURNS

BATCH: Final = 100
"""Maximum number of messages in one call of a script."""
MAX_PRIORITIES: Final = 100
"""Maximum number of priorities that one call reads; messages of lower priorities are taken by age."""
WATCHER_LATE: Final = 0.5
"""Seconds that the watcher (see `queue`) may be late before another waiting client replaces it."""
KEPT_FOR: Final = 600
"""Seconds after which unused keys of shared limits expire."""

MAX_KEPT_FOR: Final = 366 * 24 * 3600
"""Maximum seconds until a budget's counts expire, even if another program wrote instants far in the future."""

FOLDER = files("abate.stores.redis").joinpath("lua")


class LuaScript:
    """A script: the text of its files, and its digest."""

    __slots__ = ("digest", "name", "text")

    def __init__(self, *parts: str, **numbers: float) -> None:
        self.name = parts[-1]
        stated = "".join(f"local {name} = {number!r}\n" for name, number in numbers.items())
        self.text = stated + "\n".join(FOLDER.joinpath(f"{part}.lua").read_text("utf-8") for part in parts)
        self.digest = sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def __repr__(self) -> str:
        return f"<LuaScript {self.name}>"


def _of_queue(name: str, **numbers: float) -> LuaScript:
    return LuaScript(
        "clock", "queue", name, MAX_PRIORITY=MAX_PRIORITY, WATCHER_LATE=WATCHER_LATE, BATCH=BATCH, **numbers
    )


ADD = _of_queue("add")
CANCEL = _of_queue("cancel")
RECEIVE = _of_queue("receive", FAIRNESS_TURNS=FAIRNESS_TURNS, MAX_PRIORITIES=MAX_PRIORITIES)
EXTEND = _of_queue("extend")
SETTLE = _of_queue("settle")
DEAD_LETTERS = _of_queue("dead_letters", MAX_LETTER_BYTES=MAX_ATTRIBUTES_BYTES + MAX_SHOWN_BYTES + 2)
REDRIVE_OR_PURGE = _of_queue("redrive_or_purge")
DEPTH = _of_queue("depth")

COUNTING = {"SLOTS": SLOTS, "MAX_PER_SLOT": MAX_PER_SLOT, "KEPT_FOR": KEPT_FOR, "MAX_KEPT_FOR": MAX_KEPT_FOR}
BALANCE = LuaScript("clock", "budget_counts", "budget_balance", **COUNTING)
EXCHANGE = LuaScript("clock", "budget_counts", "budget_exchange", **COUNTING)
BUDGET_GRANT = LuaScript(
    "clock", "budget_counts", "members", "budget_grant", MEMBER_TIMEOUT=sync_requests.MEMBER_TIMEOUT, **COUNTING
)
BUCKET_GRANT = LuaScript(
    "clock",
    "bucket_grant",
    MEMBER_TIMEOUT=sync_requests.MEMBER_TIMEOUT,
    NEWCOMERS_RESERVE=grant_rules.NEWCOMERS_RESERVE,
    IDLE_DEMAND=grant_rules.IDLE_DEMAND,
    KEPT_FOR=KEPT_FOR,
)
SHELTER_ADVICE = LuaScript(
    "clock",
    "members",
    "shelter_rules",
    "shelter_advice",
    MEMBER_TIMEOUT=sync_requests.MEMBER_TIMEOUT,
    KEPT_FOR=KEPT_FOR,
    REPORT_VALID=shelter_rules.REPORT_VALID,
    PROBE_TURN=shelter_rules.PROBE_TURN,
    FIRST_LIMIT=shelter_rules.FIRST_LIMIT,
    FIRST_LIMIT_SHARE=shelter_rules.FIRST_LIMIT_SHARE,
    LIMIT_GROWTH=shelter_rules.LIMIT_GROWTH,
    GROWTH_INTERVAL=shelter_rules.GROWTH_INTERVAL,
    SLOW_GROWTH=shelter_rules.SLOW_GROWTH,
    MAX_FAILURE_RATIO=shelter_rules.MAX_FAILURE_RATIO,
    CALM_LIMIT=shelter_rules.CALM_LIMIT,
    OUTAGE_TIMEOUT=shelter_rules.OUTAGE_TIMEOUT,
    MAX_PAUSE=shelter_rules.MAX_PAUSE,
)
