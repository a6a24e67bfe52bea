"""The parts of the demo, each by itself: the API as a real process, the page on real sockets."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate.cli.demo import live
from abate.cli.demo.children import Child, ChildLost
from abate.cli.demo.live import Live
from abate.cli.demo.passage import Passage
from abate.cli.demo.picture import picture, ticks
from abate.cli.demo.run import words
from abate.cli.demo.scenario import PLACES, WORKERS, Scenario
from abate.cli.demo.table import rows, table
from abate.cli.demo.wire import Line, Unavailable

GUARD = 30.0


# -- the API


@asynccontextmanager
async def api(calm=GUARD, outage=1.0):
    """The API's process, and its port."""
    child = await Child.start("abate.cli.demo.api", {"calm": calm, "outage": outage})
    try:
        async with asyncio.timeout(2 * GUARD):
            yield child, await child.hear()
    finally:
        await child.end()


def nothing():
    """What to do when a connection is dropped."""


def test_a_version_that_is_written_twice_counts_once():
    """What is written can be read, and the API says how many versions that are."""

    async def main():
        async with api() as (child, port):
            line = Line(port, nothing)
            assert await line.ask("GET /objects/7") == "0"
            await line.ask("PUT /objects/7/1")
            await line.ask("PUT /objects/7/2")
            await line.ask("PUT /objects/7/1")
            assert await line.ask("GET /objects/7") == "2"
            child.tell("begin")
            return await child.hear()

    assert asyncio.run(main())["written"] == 2


@pytest.mark.parametrize(("request_line", "status"), [("GET /objects/seven", 400), ("PUT /objects/7/2", 409)])
def test_what_is_no_request_is_refused(request_line, status):
    """So is a version that would skip one. It is answered, and the API lives on."""

    async def main():
        async with api() as (_, port):
            line = Line(port, nothing)
            with pytest.raises(Unavailable) as refused:
                await line.ask(request_line)
            assert refused.value.status_code == status
            assert await line.ask("GET /objects/7") == "0"

    asyncio.run(main())


def test_more_than_it_can_serve_gets_503():
    """Of a volley, what is in service and in the queue is served at least, and not all of it."""

    async def main():
        async with api() as (_, port):
            lines = [Line(port, nothing) for _ in range(400)]
            for line in lines:
                await line.connect()
            return await asyncio.gather(*(line.ask("GET /objects/1") for line in lines), return_exceptions=True)

    answers = asyncio.run(main())
    served = answers.count("0")
    refused = [answer.status_code for answer in answers if isinstance(answer, Unavailable)]
    assert WORKERS + PLACES <= served < len(answers)
    assert refused == [503] * (len(answers) - served)


def test_the_sneeze_drops_every_connection_and_the_outage_ends():
    """Whoever was connected is told; requests get 503, and later answers; the API counts all of them."""

    async def main():
        async with api(calm=0.2, outage=1.0) as (child, port):
            dropped = asyncio.Event()
            line, refused, counted = Line(port, dropped.set), 0, []
            await line.connect()
            child.tell("begin")
            await dropped.wait()
            while True:
                try:
                    await line.ask("PUT /objects/7/1")
                    break
                except Unavailable:
                    refused += 1
                    await asyncio.sleep(0.05)
            while not counted or counted[-1]["written"] == 0:
                counted.append(await child.hear())
            return refused, counted

    refused, counted = asyncio.run(main())
    assert refused > 0
    assert sum(tenth["arrivals"] for tenth in counted) == refused + 1
    assert [tenth["tenth"] for tenth in counted] == list(range(-2, len(counted) - 2))
    assert all(tenth["peak"] >= tenth["arrivals"] for tenth in counted)


def test_a_request_on_a_dropped_connection_fails():
    """It is not left waiting for its answer."""

    async def main():
        served = asyncio.Event()

        async def cut(reader, writer):
            await reader.readline()
            writer.transport.abort()
            served.set()

        server = await asyncio.start_server(cut, "127.0.0.1", 0)
        dropped = asyncio.Event()
        async with asyncio.timeout(GUARD):
            with pytest.raises(ConnectionResetError):
                await Line(server.sockets[0].getsockname()[1], dropped.set).ask("GET /objects/1")
            await dropped.wait()
        server.close()

    asyncio.run(main())


def test_a_child_that_is_gone_is_named():
    """Whoever listens to it does not wait for ever."""

    async def main():
        async with api() as (child, _):
            child._process.kill()
            with pytest.raises(ChildLost, match=r"abate\.cli\.demo\.api ended with code -9"):
                await child.hear()

    asyncio.run(main())


# -- what is measured

STORM = Scenario(controllers=2, processes=1, calm=0.2, outage=0.5, limit=3.0)


def passage(way="naive", arrivals=(), wanted=None, written=0):
    """A passage of which the API has told so many tenths."""
    made = Passage(way, STORM)
    made.wanted = wanted
    for place, count in enumerate(arrivals):
        made.note(place - 2, count, count, written)
    return made


def test_what_arrives_is_told_apart_by_when():
    """Calm does not count; the outage and what follows count apart."""
    seen = passage(arrivals=[9, 9, 5, 4, 3, 2, 1, 70, 80, 6])
    assert (seen.attempts, seen.during, seen.peak) == (171, 15, 80)
    assert seen.now == pytest.approx(0.8)
    assert seen.lately == 189


def test_it_has_recovered_when_all_is_written():
    """That is counted from the end of the outage, and a little more is looked at."""
    seen = passage(arrivals=[0] * 10, wanted=5, written=4)
    assert seen.recovered is None
    assert (seen.lost, seen.over) == (1, False)
    seen.note(8, 1, 1, 5)
    assert seen.recovered == pytest.approx(0.4)
    assert (seen.lost, seen.over) == (0, False)
    for tenth in range(9, 14):
        seen.note(tenth, 0, 0, 5)
    assert seen.over
    assert seen.recovered == pytest.approx(0.4)


def test_it_is_over_at_the_limit():
    """What is not written by then is lost."""
    seen = passage(arrivals=[0] * 37, wanted=5, written=4)
    assert seen.over
    assert seen.lost == 1


def test_the_table_compares_both_ways():
    """What never came about is shown as more than the limit, and has no ratio."""
    naive = passage(arrivals=[0] * 7 + [40] * 30, wanted=5, written=4)
    calm = passage("abate", [0] * 7 + [10] * 9, 5, 5)
    shown = {label: cells for label, *cells in rows(naive, calm)}
    assert shown["attempts in all"] == ["1200", "90", "8%"]
    assert shown["attempts during the outage"] == ["0", "0", "-"]
    assert shown["seconds to recover"] == ["> 3", "0.0", "-"]
    assert shown["work lost"] == ["1 of 5", "0 of 5", "0%"]
    assert len({len(line) for line in table(naive, calm).splitlines()}) == 1


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (passage(), "with naive backoff: the processes start"),
        (passage(arrivals=[3]), "calm; 0 attempts"),
        (passage(arrivals=[0, 0, 7]), "+0.1 s: API answers 503; 7 attempts, 7/s; 0 written"),
        (passage(arrivals=[0] * 8), "API up again"),
        (passage("abate", [0] * 8, 5, 5), "all in step; 0 attempts, 0/s; 5 written"),
    ],
)
def test_a_line_says_how_far_it_is(seen, expected):
    """What the weather is, and what has been sent and written."""
    assert expected in words(seen)


# -- what is drawn


@given(st.floats(-100, 100), st.floats(0.01, 1e6), st.integers(2, 12))
def test_ticks_are_round_even_and_few(start, length, most):
    """They lie within the axis, and no more fit."""
    found = ticks(start, start + length, most)
    assert len(found) <= most + 1
    assert all(start - 1e-6 <= tick <= start + length + 1e-6 for tick in found)
    steps = [after - before for before, after in pairwise(found)]
    assert all(step == pytest.approx(steps[0]) for step in steps)
    if steps:
        assert f"{steps[0]:.0e}"[0] in "125"


@pytest.mark.parametrize("arrivals", [(), (0,), (0,) * 40, (3, 0, 400, 30)])
def test_a_picture_can_be_drawn_at_any_moment(arrivals):
    """Nothing has come yet, nothing at all has come, or a volley."""
    drawn = picture([passage(arrivals=arrivals), passage("abate")])
    assert "nan" not in drawn
    assert drawn.count("<path class=") >= 4


# -- the live page


async def fetched(address, path):
    """All that is answered to a GET."""
    port = int(address.rstrip("/").rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()


def test_the_page_is_pushed_what_is_to_be_seen():
    """It is told the latest view, and at last that it is over."""

    async def main():
        seen = {"words": "first"}
        served = Live(lambda: seen)
        address = await served.start()
        async with asyncio.timeout(GUARD):
            page, other = await fetched(address, "/"), await fetched(address, "/else")
            events = asyncio.create_task(fetched(address, "/events"))
            while not served.server.open:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            seen["words"] = "last"
            await served.stop()
            return page, other, await events

    page, other, events = asyncio.run(main())
    assert "200 OK" in page
    assert "EventSource" in page
    assert "404" in other
    told = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: ")]
    assert told[0] == {"words": "first", "over": False}
    assert told[-1] == {"words": "last", "over": True}


def test_a_browser_that_never_reads_holds_nobody_up(monkeypatch):
    """What it is sent does not pile up, and the end does not wait for it."""
    monkeypatch.setattr(live, "PACE", 0.001)
    monkeypatch.setattr(live, "PATIENCE", 0.5)
    asked = 0

    def view():
        nonlocal asked
        asked += 1
        return {"picture": "x" * 1_000_000}

    async def main():
        served = Live(view)
        address = await served.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rstrip("/").rpartition(":")[2]))
        writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        reader._transport.pause_reading()
        before = -1
        async with asyncio.timeout(GUARD):
            while asked != before:  # until it has stopped to send
                before = asked
                await asyncio.sleep(0.3)
            await served.stop()
        with suppress(OSError):
            writer.transport.abort()

    asyncio.run(main())
    assert 0 < asked < 30


def test_only_so_many_browsers_are_served(monkeypatch):
    """One more is turned away, and those that leave make room."""
    monkeypatch.setattr(live, "MOST", 1)

    async def main():
        served = Live(dict)
        address = await served.start()
        async with asyncio.timeout(GUARD):
            port = int(address.rstrip("/").rpartition(":")[2])
            reader, first = await asyncio.open_connection("127.0.0.1", port)
            first.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            with suppress(ConnectionError):
                assert await fetched(address, "/") == ""
            first.close()
            while served.server.open:
                await asyncio.sleep(0.01)
            assert "200 OK" in await fetched(address, "/")
            await served.stop()

    asyncio.run(main())
