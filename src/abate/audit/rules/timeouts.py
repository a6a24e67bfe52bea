"""Clients that wait for ever, for very long, or as long to connect as to read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from abate.audit.clients import CLIENTS
from abate.audit.findings import Spot, rule
from abate.audit.names import argument, has_unpacked, is_constant
from abate.audit.program import Program, ResolvedCall
from abate.audit.rules.jitter import seconds

VERBS = ("get", "post", "put", "patch", "delete", "head", "options", "request")
LONG_CONNECT = 30.0
"""Seconds: a connection that takes this long won't come."""

REQUESTS = ("requests", "requests.api", "requests.Session()", "requests.sessions.Session()", "requests.session()")

WITHOUT: dict[str, tuple[tuple[str, ...], int | None, str]] = {
    **{f"{owner}.{verb}": (("timeout",), None, "requests") for owner in REQUESTS for verb in VERBS},
    "urllib.request.urlopen": (("timeout",), 2, "urllib"),
    "http.client.HTTPConnection": (("timeout",), 2, "http.client"),
    "http.client.HTTPSConnection": (("timeout",), 2, "http.client"),
    "socket.create_connection": (("timeout",), 1, "socket"),
    "smtplib.SMTP": (("timeout",), 3, "smtplib"),
    "smtplib.SMTP_SSL": (("timeout",), 5, "smtplib"),
    "ftplib.FTP": (("timeout",), 4, "ftplib"),
    "imaplib.IMAP4_SSL": (("timeout",), 5, "imaplib"),
    "psycopg2.connect": (("connect_timeout", "dsn"), None, "psycopg"),
    "psycopg.connect": (("connect_timeout",), None, "psycopg"),
    "psycopg.Connection.connect": (("connect_timeout",), None, "psycopg"),
    "psycopg.AsyncConnection.connect": (("connect_timeout",), None, "psycopg"),
    "pymysql.connect": (("read_timeout",), None, "pymysql"),
    "MySQLdb.connect": (("connect_timeout",), None, "mysqlclient"),
    "asyncpg.create_pool": (("command_timeout",), None, "asyncpg"),
    "asyncpg.connect": (("command_timeout",), None, "asyncpg"),
    "grpc.channel_ready_future().result": (("timeout",), 0, "grpc"),
    **{
        name: (defaults.timeout_parameters, None, defaults.library)
        for name, defaults in CLIENTS.items()
        if defaults.library == "redis"
    },
}
"""What waits for ever by default: the parameters that change it, the position of the first, and the library."""
NEVER = frozenset({"httpx", "httpx2", "openai", "anthropic", "groq", "litellm"})
"""Libraries with a timeout by default, which ``timeout=None`` takes away."""
STUB = re.compile(r"(?:^|\.)\w+_pb2_grpc\.\w+Stub\(\)\.[A-Z]\w*$")
FOR_EVER = {
    "redis": "before version 8 of redis-py it waits for ever for an answer",
    "pymysql": "it waits for ever for an answer (connecting takes 10 s at most)",
    "asyncpg": "a command may take for ever (connecting takes 60 s at most)",
    "psycopg": "connecting waits until the kernel gives up, which takes minutes",
    "mysqlclient": "connecting waits until the kernel gives up, which takes minutes",
}


@rule(
    "no-timeout",
    "error",
    "a client waits for ever",
    outage=(
        "A server that accepts and never answers holds every thread, connection and "
        "lock that waits for it, until a restart."
    ),
    abate=(
        "@abate.retry(on=…, timeout=10) ends the whole call; abate.deadline(10) cuts the "
        "timeouts of its HTTP clients below it"
    ),
    fixes={
        "": "pass timeout=…",
        "requests": "pass timeout=(connect, read), for example (3.05, 10): requests has none by default",
        "redis": "pass socket_timeout=… and socket_connect_timeout=…",
        "psycopg": "pass connect_timeout=…, and set statement_timeout and tcp_user_timeout",
        "pymysql": "pass connect_timeout=…, read_timeout=… and write_timeout=…",
        "asyncpg": "pass command_timeout=…",
        "grpc": "pass timeout=… to the call: without it there is no deadline",
        "httpx": "leave timeout at its default (5 s) or pass httpx.Timeout(10, connect=3)",
        "aiohttp": "pass aiohttp.ClientTimeout(total=…, connect=…)",
    },
)
def no_timeout(program: Program) -> Iterator[Spot]:
    """Find clients and requests without a timeout."""
    for call in program.calls.values():
        if call.name is None:
            continue
        found = _without(call) or _taken_away(call)
        if found is not None:
            library, message = found
            yield program.spot(call.node, call.function, message, library)


def _without(call: ResolvedCall) -> tuple[str, str] | None:
    name = call.name or ""
    if STUB.search(name):
        if argument(call.node, "timeout", 1) is None and not has_unpacked(call.node):
            return "grpc", f"{_short(name)} has no deadline: a server that never answers blocks the caller for ever"
        return None
    found = WITHOUT.get(name)
    if found is None or has_unpacked(call.node):
        return None
    parameters, position, library = found
    given = [
        argument(call.node, parameter, position if parameter == parameters[0] else None) for parameter in parameters
    ]
    if any(one is not None and not is_constant(one, None) for one in given):
        return None
    if _says_timeout(call.node):
        return None
    why = FOR_EVER.get(library, "a server that never answers blocks the caller for ever")
    return library, f"{_short(name)} has no timeout: {why}"


def _says_timeout(call: ast.Call) -> bool:
    """Return whether a URL or connection string sets a timeout."""
    return any(
        isinstance(part, ast.Constant) and isinstance(part.value, str) and "timeout" in part.value
        for given in (*call.args, *[keyword.value for keyword in call.keywords])
        for part in ast.walk(given)
    )


def _taken_away(call: ResolvedCall) -> tuple[str, str] | None:
    """Return what is wrong with a call that passes ``timeout=None`` where the default is one."""
    name = call.name or ""
    library = name.partition(".")[0]
    if name in ("aiohttp.ClientTimeout", "aiohttp.client.ClientTimeout"):
        parts = [
            argument(call.node, part, at) for at, part in enumerate(("total", "connect", "sock_read", "sock_connect"))
        ]
        if is_constant(parts[0], None) and all(part is None or is_constant(part, None) for part in parts[1:3]):
            return (
                "aiohttp",
                "ClientTimeout(total=None) sets no timeout: a server that never answers blocks the caller for ever",
            )
        return None
    if library not in NEVER:
        return None
    last = name.rpartition(".")[2]
    if not (last in VERBS or last == "stream" or last[:1].isupper() or library == "litellm" or last == "create"):
        return None
    given = argument(call.node, "timeout", 0 if last == "Timeout" else None)
    if not is_constant(given, None) or (last == "Timeout" and len(call.node.keywords) > 1):
        return None
    return library, f"{_short(name)} has timeout=None: a server that never answers blocks the caller for ever"


@rule(
    "one-timeout",
    "note",
    "one long timeout for connecting and reading",
    outage=(
        "A host that is gone is waited for as long as a slow answer: each call costs the full time before its retry."
    ),
    abate="httpx.Timeout and requests' pair are kept by abate's clients, and cut to what a deadline leaves",
    fixes={"": "pass both: a few seconds to connect, as long as an answer may take to read: timeout=(3.05, 60)"},
)
def one_timeout(program: Program) -> Iterator[Spot]:
    """Find requests whose only timeout is long."""
    for call in program.calls.values():
        if call.name is None or WITHOUT.get(call.name, ((), None, ""))[2] != "requests":
            continue
        given = argument(call.node, "timeout")
        value = None if given is None else program.names.number(given, call.function)
        if value is not None and value >= LONG_CONNECT:
            yield program.spot(
                call.node,
                call.function,
                f"{_short(call.name)} waits up to {seconds(value)} for the connection alone",
                "requests",
            )


@rule(
    "long-timeout",
    "note",
    "the default timeout is long",
    outage="Each call hangs for minutes before the first retry, and holds its thread or task all the while.",
    abate="@abate.retry(on=…, timeout=30) ends the whole call; abate.clients.openai and .anthropic cut single attempts",
    fixes={
        "": "pass timeout=…: as long as an answer may really take",
        "openai": "pass timeout=httpx.Timeout(60, connect=5)",
        "anthropic": "pass timeout=httpx.Timeout(60, connect=5)",
        "botocore": "pass config=Config(connect_timeout=3, read_timeout=10, retries={'mode': 'standard'})",
    },
)
def long_timeout(program: Program) -> Iterator[Spot]:
    """Find clients that are left to a default timeout of a minute or more."""
    for call in program.calls.values():
        defaults = CLIENTS.get(call.name or "")
        if defaults is None or not 60.0 <= defaults.timeout < 1e6 or has_unpacked(call.node):
            continue
        if any(argument(call.node, parameter) is not None for parameter in defaults.timeout_parameters):
            continue
        times = f", {defaults.attempts:g} times" if defaults.attempts else ""
        yield program.spot(
            call.node,
            call.function,
            f"{defaults.label} waits up to {seconds(defaults.timeout)} for an answer by default{times}",
            defaults.library,
        )


def _short(name: str) -> str:
    return ".".join(name.replace("()", "").split(".")[-2:])
