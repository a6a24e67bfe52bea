"""What tests of transactions do with the table of accounts."""

import sqlalchemy as sa


def set_balance(handle, balance, account=1):
    handle.execute(sa.text("UPDATE accounts SET balance = :b WHERE id = :a"), {"b": balance, "a": account})


def balances(server):
    return [balance for (balance,) in server.run("SELECT balance FROM accounts ORDER BY id")]


def conflict_in(server):
    """A real conflict: another session holds account 2 while this runs, and this one does not wait."""
    holder = server.connect()
    holder.execute("BEGIN")
    holder.execute("UPDATE accounts SET balance = 0 WHERE id = 2")
    return holder


LOCK_2 = sa.text("SELECT balance FROM accounts WHERE id = 2 FOR UPDATE NOWAIT")
