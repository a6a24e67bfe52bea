"""The offers of a fleet's members in SQLite, each answered by the rules of `abate.stores.fleet`."""

from __future__ import annotations

from sqlite3 import Connection
from typing import Any, assert_never

from abate.admit.window import MOST
from abate.stores.fleet import rules, weather
from abate.stores.fleet.offers import GONE, Accounts, Answer, Demand, Forecast, Offer, Share, Sight, Tokens
from abate.stores.ledger import Terms

# what another program has written, and is no count, is left out
COUNTED = f"""
    SELECT coalesce(sum(deposits), 0), coalesce(sum(withdrawals), 0) FROM slot WHERE budget = ? AND begins >= ?
        AND typeof(deposits) = 'integer' AND deposits BETWEEN 0 AND {2**52}
        AND typeof(withdrawals) = 'integer' AND withdrawals BETWEEN 0 AND {2**52}
"""
COUNT = """
    INSERT INTO slot (budget, begins, forgotten, deposits, withdrawals) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (budget, begins) DO UPDATE SET
        forgotten = max(forgotten, excluded.forgotten),
        deposits = deposits + excluded.deposits,
        withdrawals = withdrawals + excluded.withdrawals
"""
COME = """
    INSERT INTO member (scope, member, seen, wanted, sees) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (scope, member) DO UPDATE SET seen = excluded.seen, wanted = excluded.wanted, sees = excluded.sees
"""


def sweep(db: Connection, now: float) -> None:
    """Forget the members of all that is shared who are gone: what nobody shares any more would stay.

    It looks at every row, so it is done now and then, and not for each offer.
    """
    db.execute("DELETE FROM member WHERE seen <= ? OR seen > ?", (now - GONE, now + GONE))


def answer(db: Connection, now: float, member: str, offer: Offer) -> Answer:
    """The answer to one offer, within a transaction."""
    match offer:
        case Accounts():
            return _tokens(db, now, member, offer)
        case Demand():
            return _share(db, now, member, offer)
        case Sight():
            return _forecast(db, now, member, offer)
        case other:
            assert_never(other)


def _came(db: Connection, now: float, scope: str, member: str, wanted: float = 0.0, sees: str = "nothing") -> int:
    """A member has come; how many there are."""
    db.execute("DELETE FROM member WHERE scope = ? AND (seen <= ? OR seen > ?)", (scope, now - GONE, now + GONE))
    db.execute(COME, (scope, member, now, wanted, sees))
    (members,) = db.execute("SELECT count(*) FROM member WHERE scope = ?", (scope,)).fetchone()
    return int(members)


# -- budgets


def _tokens(db: Connection, now: float, member: str, offer: Accounts) -> Tokens:
    members = _came(db, now, f"budget:{offer.name}", member)
    paid, withdrawn = counted(db, now, offer.name, offer.terms, offer.held)
    deposits, spent = paid + offer.earned, withdrawn + offer.spent
    granted = rules.granted(offer.terms, deposits, spent, offer.want, members)
    count(db, now, offer.name, offer.terms, offer.earned, offer.spent + granted)
    return Tokens(granted, members)


def counted(db: Connection, now: float, name: str, terms: Terms, returned: int) -> tuple[int, int]:
    """Deposits and withdrawals in the window of a budget, after its newest withdrawals were taken back."""
    begins, since, _ = terms.slot(now)
    # a slot that begins more than a window ahead was counted by a clock that has been set back since
    ahead = begins + terms.window
    db.execute("DELETE FROM slot WHERE forgotten <= ? OR (budget = ? AND begins > ?)", (now, name, ahead))
    if returned:
        _take_back(db, name, since, returned)
    deposits, withdrawals = db.execute(COUNTED, (name, since)).fetchone()
    return int(deposits), int(withdrawals)


def count(db: Connection, now: float, name: str, terms: Terms, deposits: int, withdrawals: int) -> None:
    """Count these in the slot of now."""
    begins, _, forgotten = terms.slot(now)
    if deposits or withdrawals:
        db.execute(COUNT, (name, begins, forgotten, min(deposits, MOST), min(withdrawals, MOST)))


def _take_back(db: Connection, name: str, since: float, returned: int) -> None:
    """Forget the newest withdrawals, if there are so many."""
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


def _share(db: Connection, now: float, member: str, offer: Demand) -> Share:
    scope = f"bucket:{offer.name}"
    members = _came(db, now, scope, member, wanted=offer.wanted)
    others = db.execute(
        "SELECT wanted, part FROM member WHERE scope = ? AND member <> ? "
        "AND typeof(wanted) = 'real' AND wanted BETWEEN 0 AND 1e15 AND typeof(part) = 'real' AND part BETWEEN 0 AND 1",
        (scope, member),
    ).fetchall()
    part = rules.part(offer.wanted, [wanted for wanted, _ in others], [part for _, part in others])
    db.execute("UPDATE member SET part = ? WHERE scope = ? AND member = ?", (part, scope, member))
    return Share(part, members)


# -- shelters


def _is_weather(row: tuple[Any, ...]) -> bool:
    """Is this what was written down, and nothing that another program has put there?"""
    state, until, prober, *numbers = row
    return (
        state in (b"calm", b"storm", b"recovering")
        and isinstance(prober, bytes)
        and all(isinstance(number, float) for number in (until, *numbers))
    )


def _known(row: tuple[Any, ...]) -> weather.Known:
    return weather.Known(row[0].decode(), row[1], row[2].decode(errors="replace"), *row[3:])


def _forecast(db: Connection, now: float, member: str, offer: Sight) -> Forecast:
    scope = f"shelter:{offer.name}"
    members = _came(db, now, scope, member, sees=weather.seen(offer))
    good, bad, place = db.execute(
        """
        SELECT
            count(CASE WHEN sees = 'good' AND seen > :lately THEN 1 END),
            count(CASE WHEN sees = 'bad' AND seen > :lately THEN 1 END),
            count(CASE WHEN member < :member THEN 1 END)
        FROM member WHERE scope = :scope
        """,
        {"scope": scope, "lately": now - weather.LATELY, "member": member},
    ).fetchone()
    row = db.execute(
        "SELECT state, until, prober, turn, highest, base, grown FROM weather WHERE name = ?", (offer.name,)
    ).fetchone()
    known = weather.Known() if row is None or not _is_weather(row) else _known(row)
    known, forecast = weather.heard(known, offer, member, weather.Line(members, good, bad, place), now)
    db.execute("DELETE FROM weather WHERE name = ?", (offer.name,))
    if known.state != "calm":
        db.execute("INSERT INTO weather VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (offer.name, *known))
    return forecast
