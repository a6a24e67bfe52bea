"""Database retries: without a rollback, or around a part of a transaction."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from abate.audit.findings import Spot, rule
from abate.audit.module_index import Function, inside
from abate.audit.program import Program
from abate.audit.retries import Retries

DRIVERS = (
    "sqlalchemy.",
    "psycopg2.",
    "psycopg.",
    "pymysql.",
    "MySQLdb.",
    "django.db.",
    "asyncpg.",
    "mysql.connector.",
    "oracledb.",
)
DATABASE_ERRORS = (
    "OperationalError", "DBAPIError", "SQLAlchemyError", "InterfaceError", "DatabaseError", "SerializationFailure",
    "DeadlockDetected", "StaleDataError", "PendingRollbackError", "DBError", "DBDeadlock",
)  # fmt: skip
WRITES = frozenset({"commit", "flush"})
TRANSACTIONS = ("begin", "begin_nested", "atomic", "transaction")
FRESH = (
    *TRANSACTIONS, "session", "Session", "SessionLocal", "sessionmaker", "session_scope", "get_session",
    "create_session", "connect", "connection", "Connection", "get_connection", "acquire", "cursor", "get_db",
)  # fmt: skip


@rule(
    "retry-without-rollback",
    "error",
    "a database retry without a rollback",
    outage=(
        "After the first failure the transaction is broken: every retry fails on it, or commits half of what was done."
    ),
    abate=(
        "abate.retry_on_db_conflict() knows the drivers' errors, and a session of "
        "SQLAlchemy is rolled back before a retry"
    ),
    fixes={"": "roll back before the next attempt, or open the transaction inside of it: with session.begin(): …"},
)
def retry_without_rollback(program: Program) -> Iterator[Spot]:
    """Find loops that retry a commit or flush of the same session and never roll back."""
    for retries in program.retries:
        if not retries.swallows or not _is_database(retries):
            continue
        attributes = {
            node.func.attr
            for node in inside(retries.node)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        }
        if not WRITES & attributes or any("rollback" in name for name in attributes):
            continue
        if not _opens_inside(retries):
            yield program.spot(
                retries.node,
                retries.function,
                f"{retries.label} repeats a commit or flush and never rolls back",
                retries.library,
            )


@rule(
    "half-transaction",
    "error",
    "a retry inside of a transaction",
    outage=(
        "A deadlock or lost connection has undone the statements before the retry: what "
        "follows is committed without them."
    ),
    abate="put @abate.retry_on_db_conflict() on the function that holds the whole transaction, its commit included",
    fixes={"": "move the retry around the whole transaction: everything from begin to commit is one attempt"},
)
def half_transaction(program: Program) -> Iterator[Spot]:
    """Find retries of database errors inside of a ``with`` block that is a transaction."""
    for retries in program.retries:
        if retries.retries and _is_database(retries) and _in_transaction(retries.node, retries.function):
            yield program.spot(
                retries.node,
                retries.function,
                f"{retries.label} retries a part of a transaction that began outside of it",
                retries.library,
            )


def _is_database(retries: Retries) -> bool:
    return any(
        (name.startswith(DRIVERS) and name.rpartition(".")[2] != "IntegrityError")
        or name.rpartition(".")[2] in DATABASE_ERRORS
        for name in retries.errors or ()
    )


def _opens_inside(retries: Retries) -> bool:
    """Return whether each attempt opens a session, connection or transaction of its own."""
    for covered in retries.covered:
        for statement in covered.nodes or ():
            for node in inside(statement):
                if isinstance(node, ast.With | ast.AsyncWith):
                    return True
                if isinstance(node, ast.Call) and _called(node) in FRESH:
                    return True
    return False


def _in_transaction(node: ast.AST, function: Function) -> bool:
    for block in function.withs:
        if block.lineno < getattr(node, "lineno", 0) <= (block.end_lineno or 0):
            for item in block.items:
                if isinstance(item.context_expr, ast.Call) and _called(item.context_expr) in TRANSACTIONS:
                    return True
    return False


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
