"""Answer the sync requests of a fleet's members in SQLite, by the rules of `abate.stores.fleet`."""

from __future__ import annotations

from sqlite3 import Connection
from typing import Any, assert_never

from abate.admit.sliding_window import MAX_PER_SLOT
from abate.stores.budget import BudgetTerms
from abate.stores.fleet import grant_rules, shelter_rules
from abate.stores.fleet.sync_requests import (
    MEMBER_TIMEOUT,
    BucketGrant,
    BucketRequest,
    BudgetGrant,
    BudgetRequest,
    ShelterAdvice,
    ShelterReport,
    SyncReply,
    SyncRequest,
)

# ignore invalid counts written by another program
COUNTED = f"""
    SELECT coalesce(sum(deposits), 0), coalesce(sum(withdrawals), 0) FROM slot WHERE budget = ? AND begins >= ?
        AND typeof(deposits) = 'integer' AND deposits BETWEEN 0 AND {2**52}
        AND typeof(withdrawals) = 'integer' AND withdrawals BETWEEN 0 AND {2**52}
"""
ADD_COUNTS = """
    INSERT INTO slot (budget, begins, forgotten, deposits, withdrawals) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (budget, begins) DO UPDATE SET
        forgotten = max(forgotten, excluded.forgotten),
        deposits = deposits + excluded.deposits,
        withdrawals = withdrawals + excluded.withdrawals
"""
JOIN = """
    INSERT INTO member (scope, member, seen, wanted, sees) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (scope, member) DO UPDATE SET seen = excluded.seen, wanted = excluded.wanted, sees = excluded.sees
"""


def delete_gone_members(db: Connection, now: float) -> None:
    """Delete expired members of all shared limits, including limits that are no longer in use.

    This scans the table, so it runs at intervals and not for each request.
    """
    db.execute("DELETE FROM member WHERE seen <= ? OR seen > ?", (now - MEMBER_TIMEOUT, now + MEMBER_TIMEOUT))


def reply(db: Connection, now: float, member: str, request: SyncRequest) -> SyncReply:
    """Return the reply to one request; needs a write transaction."""
    match request:
        case BudgetRequest():
            return _budget_grant(db, now, member, request)
        case BucketRequest():
            return _bucket_grant(db, now, member, request)
        case ShelterReport():
            return _shelter_advice(db, now, member, request)
        case other:
            assert_never(other)


def _touch_member(
    db: Connection, now: float, scope: str, member: str, wanted: float = 0.0, sees: str = "nothing"
) -> int:
    """Record that a member is active. Return the number of active members."""
    db.execute(
        "DELETE FROM member WHERE scope = ? AND (seen <= ? OR seen > ?)",
        (scope, now - MEMBER_TIMEOUT, now + MEMBER_TIMEOUT),
    )
    db.execute(JOIN, (scope, member, now, wanted, sees))
    (members,) = db.execute("SELECT count(*) FROM member WHERE scope = ?", (scope,)).fetchone()
    return int(members)


# -- budgets


def _budget_grant(db: Connection, now: float, member: str, request: BudgetRequest) -> BudgetGrant:
    members = _touch_member(db, now, f"budget:{request.name}", member)
    paid, withdrawn = window_counts(db, now, request.name, request.terms, request.held)
    deposits, spent = paid + request.earned, withdrawn + request.spent
    granted = grant_rules.budget_grant(request.terms, deposits, spent, request.want, members)
    add_counts(db, now, request.name, request.terms, request.earned, request.spent + granted)
    return BudgetGrant(granted, members)


def window_counts(db: Connection, now: float, name: str, terms: BudgetTerms, returned: int) -> tuple[int, int]:
    """Take back the newest withdrawals of a budget. Return the deposits and withdrawals in its window."""
    begins, since, _ = terms.slot(now)
    # a slot that begins more than a window ahead was written before the clock was set back
    ahead = begins + terms.window
    db.execute("DELETE FROM slot WHERE forgotten <= ? OR (budget = ? AND begins > ?)", (now, name, ahead))
    if returned:
        _take_back(db, name, since, returned)
    deposits, withdrawals = db.execute(COUNTED, (name, since)).fetchone()
    return int(deposits), int(withdrawals)


def add_counts(db: Connection, now: float, name: str, terms: BudgetTerms, deposits: int, withdrawals: int) -> None:
    """Add counts to the current slot."""
    begins, _, forgotten = terms.slot(now)
    if deposits or withdrawals:
        db.execute(ADD_COUNTS, (name, begins, forgotten, min(deposits, MAX_PER_SLOT), min(withdrawals, MAX_PER_SLOT)))


def _take_back(db: Connection, name: str, since: float, returned: int) -> None:
    """Subtract up to `returned` withdrawals from the slots, newest first."""
    slots = db.execute(
        "SELECT begins, withdrawals FROM slot WHERE budget = ? AND begins >= ? AND withdrawals > 0 "
        "AND typeof(withdrawals) = 'integer' ORDER BY begins DESC",
        (name, since),
    ).fetchall()
    for begins, withdrawals in slots:
        back = min(returned, withdrawals)
        db.execute(
            "UPDATE slot SET withdrawals = withdrawals - ? WHERE budget = ? AND begins = ?", (back, name, begins)
        )
        returned -= back
        if not returned:
            return


# -- buckets


def _bucket_grant(db: Connection, now: float, member: str, request: BucketRequest) -> BucketGrant:
    scope = f"bucket:{request.name}"
    members = _touch_member(db, now, scope, member, wanted=request.wanted)
    others = db.execute(
        "SELECT wanted, part FROM member WHERE scope = ? AND member <> ? "
        "AND typeof(wanted) = 'real' AND wanted BETWEEN 0 AND 1e15 AND typeof(part) = 'real' AND part BETWEEN 0 AND 1",
        (scope, member),
    ).fetchall()
    share = grant_rules.bucket_share(request.wanted, [wanted for wanted, _ in others], [share for _, share in others])
    db.execute("UPDATE member SET part = ? WHERE scope = ? AND member = ?", (share, scope, member))
    return BucketGrant(share, members)


# -- shelters


def _is_valid_row(row: tuple[Any, ...]) -> bool:
    """Return whether the row has valid types; another program may have written anything."""
    state, until, prober, *numbers = row
    return (
        state in (b"calm", b"storm", b"recovering")
        and isinstance(prober, bytes)
        and all(isinstance(number, float) for number in (until, *numbers))
    )


def _known(row: tuple[Any, ...]) -> shelter_rules.OutageState:
    return shelter_rules.OutageState(row[0].decode(), row[1], row[2].decode(errors="replace"), *row[3:])


def _shelter_advice(db: Connection, now: float, member: str, request: ShelterReport) -> ShelterAdvice:
    scope = f"shelter:{request.name}"
    members = _touch_member(db, now, scope, member, sees=shelter_rules.classify(request))
    good, bad, place = db.execute(
        """
        SELECT
            count(CASE WHEN sees = 'good' AND seen > :lately THEN 1 END),
            count(CASE WHEN sees = 'bad' AND seen > :lately THEN 1 END),
            count(CASE WHEN member < :member THEN 1 END)
        FROM member WHERE scope = :scope
        """,
        {"scope": scope, "lately": now - shelter_rules.REPORT_VALID, "member": member},
    ).fetchone()
    row = db.execute(
        "SELECT state, until, prober, turn, highest, base, grown FROM weather WHERE name = ?", (request.name,)
    ).fetchone()
    known = shelter_rules.OutageState() if row is None or not _is_valid_row(row) else _known(row)
    known, advice = shelter_rules.update(
        known, request, member, shelter_rules.MemberCounts(members, good, bad, place), now
    )
    db.execute("DELETE FROM weather WHERE name = ?", (request.name,))
    if known.state != "calm":
        db.execute("INSERT INTO weather VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (request.name, *known))
    return advice
