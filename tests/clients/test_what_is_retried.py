"""The table of docs/clients.md, cell by cell: which failures each HTTP client retries, on real sockets."""

import re
from pathlib import Path

import pytest

import abate
from tests.clients.drivers import DRIVERS, Ask, unused_url
from tests.clients.httpx_ways import WAYS
from tests.clients.server import Server, close, close_in_body, reset, respond

DOCS = Path(__file__).parents[2] / "docs" / "clients.md"
HINT = ("Retry-After", "0")
QUOTA = b'{"error": {"code": "insufficient_quota"}}'

ANSWERS = {
    "400, 404, 501, 505": [respond(400), respond(404), respond(501), respond(505)],
    "408, 425, 500, 502, 504, 507": [respond(status) for status in (408, 425, 500, 502, 504, 507)],
    "503": [respond(503)],
    "503 with a hint, 429, 529": [respond(503, HINT), respond(429), respond(529)],
    "429 with `insufficient_quota`": [respond(429, ("Content-Type", "application/json"), body=QUOTA)],
    "409": [respond(409)],
    "409 with `x-should-retry: true`": [respond(409, ("x-should-retry", "true"))],
    "503 with `x-should-retry: false`": [respond(503, ("x-should-retry", "false"))],
    "connection refused": [],
    "closed or reset without an answer": [close, reset],
    "no answer before the timeout": [Server.hang],
    "answer cut off, read whole (requests, urllib3)": [close_in_body],
    "answer cut off, handed over unread (httpx, aiohttp)": [close_in_body],
}
"""What the server does at the first attempt, in each row of the table; it answers 200 to the second."""


def with_pipe(number):
    """A body that can be sent once."""
    yield b"order %d" % number


REQUESTS = {
    "GET": {"method": "GET"},
    "GET, streamed": {"method": "GET", "stream": True},
    "PUT": {"method": "PUT", "body": b"order"},
    "POST": {"method": "POST", "body": b"order"},
    "POST with `Idempotency-Key`": {"method": "POST", "body": b"order", "headers": {"Idempotency-Key": "8e03"}},
    "PUT of a generator": {"method": "PUT", "body": with_pipe},
}
"""The columns."""


class ByHttpx:
    """httpx and httpx2, by the interface of the other drivers."""

    reads_whole = False

    def __init__(self, way):
        self.way = way

    def fetch(self, ask, policy):
        body = ask.body
        if self.way.loop != "threads" and not isinstance(body, (bytes, type(None))):
            body = as_async(body)
        response = self.way.fetch(
            policy,
            ask.url,
            ask.method,
            request={"content": body, "headers": ask.headers},
            client={"timeout": ask.timeout[1], "trust_env": False},
            streamed=ask.stream,
        )
        return response.status_code


async def as_async(parts):
    for part in parts:
        yield part


CLIENTS = {type(driver).__name__.lower(): driver for driver in DRIVERS} | {repr(way): ByHttpx(way) for way in WAYS}


def table():
    """The cells of the table in the docs, by row and column."""
    text = DOCS.read_text(encoding="utf-8")
    lines = re.search(r"\| the first attempt ends with \|.*?\n\n", text, re.DOTALL)[0].strip().splitlines()
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}


def is_retried(client, ask, server):
    """Whether a second attempt follows."""
    policy = abate.Policy(name="shop", on=abate.http.transient, backoff=[0.0], max_attempts=2)
    try:
        CLIENTS[client].fetch(ask, policy)
    except Exception as error:
        report = abate.report(error)
        if report is not None:  # the body of a response that was handed over may fail too: it has no report
            return report.attempts == 2
    return len(server.requests) == 2


def test_the_table_has_these_rows_and_columns():
    """No row of the docs is left out, and none is tested that the docs do not have."""
    cells = table()
    assert list(cells) == list(ANSWERS)
    assert [list(row) for row in cells.values()] == [list(REQUESTS)] * len(cells)


@pytest.mark.parametrize(
    ("client", "row"),
    [
        (client, row)
        for client, driver in CLIENTS.items()
        for row in ANSWERS
        if not row.startswith("answer cut off") or driver.reads_whole is row.endswith("(requests, urllib3)")
    ],
)
def test_each_client_retries_what_the_table_says(client, row):
    """Each cell of a row, with each of the answers that the row names."""
    seen = {}
    for column, request in REQUESTS.items():
        outcomes = set()
        for number, answer in enumerate(ANSWERS[row] or [None]):
            ask = Ask("", timeout=(10.0, 0.2 if answer is Server.hang else 10.0), **request)
            if ask.body is with_pipe:
                ask.body = as_async(with_pipe(number)) if client == "aiohttp" else with_pipe(number)
            if answer is None:
                ask.url = unused_url()
                outcomes.add(is_retried(client, ask, None))
                continue
            with Server(answer) as server:
                if answer is Server.hang:
                    server.script[0] = server.hang
                ask.url = server.url
                outcomes.add(is_retried(client, ask, server))
        seen[column] = "/".join({True: "yes", False: "no"}[each] for each in sorted(outcomes))
    assert seen == table()[row]
