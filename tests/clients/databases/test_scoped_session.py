"""Transactions of a `scoped_session`."""

import sqlalchemy as sa
from sqlalchemy.orm import scoped_session, sessionmaker

from abate.clients.sqlalchemy import transaction


def test_scoped_session_gives_the_session_of_the_scope():
    """The function gets the session that the rest of the scope uses."""
    engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
    scoped = scoped_session(sessionmaker(engine))

    @transaction(scoped)
    def double(session, number):
        assert session is scoped()
        return session.scalar(sa.text("SELECT 2 * :number"), {"number": number})

    assert [double(21), double(4)] == [42, 8]
    assert not scoped().in_transaction()
    scoped.remove()
    engine.dispose()
