"""The parts of the demo, each by itself: the API as a real process."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate.cli.demo.api_client import ApiConnection, Unavailable
from abate.cli.demo.both_runs import progress
from abate.cli.demo.child_processes import Child, ChildExited
from abate.cli.demo.measured_run import DemoRun
from abate.cli.demo.picture import picture, ticks
from abate.cli.demo.settings import DemoSettings
from abate.cli.demo.table import comparison, rows

GUARD = 30.0


# -- the API


@asynccontextmanager
async def api(calm=GUARD, outage=1.0):
    """The API's process, and its port."""
    child = await Child.start("abate.cli.demo.api_process", {"calm": calm, "outage": outage})
    try:
        async with asyncio.timeout(2 * GUARD):
            yield child, await child.receive()
    finally:
        await child.end()


def nothing():
    """What to do when a connection is dropped."""


def test_a_version_that_is_written_twice_counts_once():
    """What is written can be read, and the API says how many versions that are."""

    async def main():
        async with api() as (child, port):
            line = ApiConnection(port, nothing)
            assert await line.ask("GET /objects/7") == "0"
            await line.ask("PUT /objects/7/1")
            await line.ask("PUT /objects/7/2")
            await line.ask("PUT /objects/7/1")
            assert await line.ask("GET /objects/7") == "2"
            child.send("begin")
            return await child.receive()

    assert asyncio.run(main())["written"] == 2


@pytest.mark.parametrize(("request_line", "status"), [("GET /objects/seven", 400), ("PUT /objects/7/2", 409)])
def test_what_is_no_request_is_refused(request_line, status):
    """So is a version that would skip one. It is answered, and the API lives on."""

    async def main():
        async with api() as (_, port):
            line = ApiConnection(port, nothing)
            with pytest.raises(Unavailable) as refused:
                await line.ask(request_line)
            assert refused.value.status_code == status
            assert await line.ask("GET /objects/7") == "0"

    asyncio.run(main())


def test_more_than_it_can_serve_gets_503():
    """Of a volley, what is in service and in the queue is served at least, and not all of it."""

    async def main():
        async with api() as (_, port):
            lines = [ApiConnection(port, nothing) for _ in range(400)]
            for line in lines:
                await line.connect()
            return await asyncio.gather(*(line.ask("GET /objects/1") for line in lines), return_exceptions=True)

    answers = asyncio.run(main())
    served = answers.count("0")
    refused = [answer.status_code for answer in answers if isinstance(answer, Unavailable)]
    assert 60 <= served < len(answers)
    assert refused == [503] * (len(answers) - served)


def test_the_outage_drops_every_connection_and_ends():
    """Each connection is closed; requests get 503, and answers later; the API counts all of them."""

    async def main():
        async with api(calm=0.2, outage=1.0) as (child, port):
            dropped = asyncio.Event()
            line, refused, counted = ApiConnection(port, dropped.set), 0, []
            await line.connect()
            child.send("begin")
            await dropped.wait()
            while True:
                try:
                    await line.ask("PUT /objects/7/1")
                    break
                except Unavailable:
                    refused += 1
                    await asyncio.sleep(0.05)
            while not counted or counted[-1]["written"] == 0:
                counted.append(await child.receive())
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
                await ApiConnection(server.sockets[0].getsockname()[1], dropped.set).ask("GET /objects/1")
            await dropped.wait()
        server.close()

    asyncio.run(main())


def test_a_child_that_is_gone_is_named():
    """A listener's wait ends."""

    async def main():
        async with api() as (child, _):
            os.kill(child.pid, signal.SIGKILL)
            with pytest.raises(ChildExited, match=r"abate\.cli\.demo\.api_process ended with code -9"):
                await child.receive()

    asyncio.run(main())


# -- what is measured

STORM = DemoSettings(controllers=2, processes=1, calm=0.2, outage=0.5, limit=3.0)


def demo_run(way="naive", arrivals=(), wanted=None, written=0):
    """A run of which the API has sent these tenths."""
    made = DemoRun(way, STORM)
    made.wanted = wanted
    for place, count in enumerate(arrivals):
        made.record(place - 2, count, count, written)
    return made


def test_arrivals_are_counted_by_when_they_came():
    """Calm does not count; the outage and what follows count apart."""
    seen = demo_run(arrivals=[9, 9, 5, 4, 3, 2, 1, 70, 80, 6])
    assert (seen.attempts, seen.during, seen.peak) == (171, 15, 80)
    assert seen.now == pytest.approx(0.8)
    assert seen.last_second == 189


def test_it_has_recovered_when_all_is_written():
    """That is counted from the end of the outage, and a little more is looked at."""
    seen = demo_run(arrivals=[0] * 10, wanted=5, written=4)
    assert seen.recovered is None
    assert (seen.lost, seen.over) == (1, False)
    seen.record(8, 1, 1, 5)
    assert seen.recovered == pytest.approx(0.4)
    assert (seen.lost, seen.over) == (0, False)
    for tenth in range(9, 14):
        seen.record(tenth, 0, 0, 5)
    assert seen.over
    assert seen.recovered == pytest.approx(0.4)


def test_it_is_over_at_the_limit():
    """What is not written by then is lost."""
    seen = demo_run(arrivals=[0] * 37, wanted=5, written=4)
    assert seen.over
    assert seen.lost == 1


def test_the_table_compares_both_ways():
    """What never came about is shown as more than the limit, and has no ratio."""
    naive = demo_run(arrivals=[0] * 7 + [40] * 30, wanted=5, written=4)
    calm = demo_run("abate", [0] * 7 + [10] * 9, 5, 5)
    shown = {label: cells for label, *cells in rows(naive, calm)}
    assert shown["attempts in all"] == ["1200", "90", "8%"]
    assert shown["attempts during the outage"] == ["0", "0", "-"]
    assert shown["seconds to recover"] == ["> 3", "0.0", "-"]
    assert shown["work lost"] == ["1 of 5", "0 of 5", "0%"]
    head, *lines = comparison(naive, calm).splitlines()
    assert head.split("  ")[-3:] == ["naive backoff", "abate", " ratio"]
    assert [line.split("  ")[0] for line in lines] == list(shown)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (demo_run(), "with naive backoff: processes start"),
        (demo_run(arrivals=[3]), "API up; 0 attempts"),
        (demo_run(arrivals=[0, 0, 7]), "+0.1 s: API answers 503; 7 attempts, 7/s; 0 written"),
        (demo_run(arrivals=[0] * 8), "API up again"),
        (demo_run("abate", [0] * 8, 5, 5), "all in step; 0 attempts, 0/s; 5 written"),
    ],
)
def test_a_line_says_how_far_it_is(seen, expected):
    """The state of the API, and what has been sent and written."""
    assert expected in progress(seen)


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
    drawn = picture([demo_run(arrivals=arrivals), demo_run("abate")])
    assert "nan" not in drawn
    assert drawn.count("<path class=") >= 4
