import random
import time

from sqlalchemy.exc import OperationalError


def commits_again(session, order):
    for attempt in range(3):  # found: retry-without-rollback
        try:
            session.add(order)
            session.commit()
            return
        except OperationalError:
            time.sleep(random.random())


def half(session, order):
    with session.begin():
        reserve(session)
        for attempt in range(3):  # found: half-transaction
            try:
                session.execute(order)
                break
            except OperationalError:
                time.sleep(random.random())


# ── sound ────────────────────────────────────────────────────────────────────────────────────────────────────


def rolls_back(session, order):
    for attempt in range(3):
        try:
            session.add(order)
            session.commit()
            return
        except OperationalError:
            session.rollback()
            time.sleep(random.random())


def whole(Session, order):
    for attempt in range(3):
        try:
            with Session.begin() as session:
                session.execute(order)
            return
        except OperationalError:
            time.sleep(random.random())
