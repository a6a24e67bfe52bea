"""The live page's stream, and the page served beside a program."""

import asyncio
import gc
import json
import socket
import threading

import httpx
import pytest

import abate
from abate import events
from abate.call.counters import wrapper_versions
from abate.observe import page

GUARD = 30.0
"""Seconds after which a test takes it that something hangs."""


class Visitor:
    """A browser at the level of ASGI, which takes what it is sent when it is let."""

    def __init__(self, app, method="GET"):
        self.scope = {"type": "http", "method": method, "path": "/events", "query_string": b"", "root_path": ""}
        self.scope |= {"headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "scheme": "http"}
        self.app = app
        self.left = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self.status = None
        self.body = []
        self.ended = False

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        await self.reads.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body.append(message.get("body", b""))
            self.ended = not message.get("more_body", False)

    def come(self):
        self.task = asyncio.ensure_future(self.app(self.scope, self.receive, self.send))
        return self

    def frames(self):
        """When each of the frames was made."""
        text = b"".join(self.body).decode()
        return [json.loads(line[6:])["at"] for line in text.splitlines() if line.startswith('data: {"at"')]


async def until(condition):
    """Wait for something that comes about in this event loop."""
    async with asyncio.timeout(GUARD):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_browser_gets_the_past_and_then_an_update_each_second():
    """On virtual time: the history, and frames one second apart, until it leaves."""

    async def main():
        with abate.testing.VirtualClock(start=100.0) as clock:
            app = page.app(local_only=True)
            visitor = Visitor(app).come()
            await clock.asleep(3.5)
            assert visitor.body[0].startswith(b"retry: 1000\nevent: history\ndata: {")
            assert visitor.frames() == [100.0, 101.0, 102.0, 103.0]
            visitor.left.set()
            await visitor.task
            assert app.state.stream.visitors == 0
            app.state.stream.close()

    asyncio.run(main())


def test_a_browser_that_reads_late_gets_the_newest():
    """What it has missed is left out: nothing is kept for it but what it was being sent."""

    async def main():
        with abate.testing.VirtualClock() as clock:
            app = page.app(local_only=True)
            visitor = Visitor(app).come()
            await clock.asleep(0.5)
            visitor.reads.clear()
            await clock.asleep(5.0)
            visitor.reads.set()
            await clock.asleep(1.0)
            assert visitor.frames() == [0.0, 1.0, 5.0, 6.0]
            visitor.left.set()
            await visitor.task
            app.state.stream.close()

    asyncio.run(main())


def test_a_browser_that_never_reads_is_dropped():
    """After its patience, and its place is free again; one that reads goes on."""

    async def main():
        with abate.testing.VirtualClock() as clock:
            app = page.app(local_only=True, patience=15.0)
            reader, sleeper = Visitor(app).come(), Visitor(app).come()
            await clock.asleep(0.5)
            sleeper.reads.clear()
            await clock.asleep(15.0)
            assert app.state.stream.visitors == 2
            await clock.asleep(1.0)
            assert sleeper.task.done()
            assert (len(sleeper.frames()), sleeper.ended) == (1, False)
            assert app.state.stream.visitors == 1
            assert reader.frames()[-1] == 16.0
            app.state.stream.close()
            await reader.task
            assert reader.ended

    asyncio.run(main())


def test_one_browser_too_many_is_told_to_come_later():
    """The number is bounded, and a place that is left can be taken."""

    async def main():
        app = page.app(local_only=True, max_visitors=2)
        first, second = Visitor(app).come(), Visitor(app).come()
        await until(lambda: first.frames() and second.frames())
        third = Visitor(app).come()
        await third.task
        assert third.status == 503
        first.left.set()
        await first.task
        fourth = Visitor(app).come()
        await until(lambda: fourth.frames())
        app.state.stream.close()
        await asyncio.gather(second.task, fourth.task)

    asyncio.run(main())


def test_asking_for_the_head_of_the_stream_ends_at_once():
    """HEAD has no body to wait for."""

    async def main():
        app = page.app(local_only=True)
        visitor = Visitor(app, "HEAD").come()
        await visitor.task
        assert (visitor.status, visitor.body, visitor.ended) == (200, [b""], True)
        app.state.stream.close()

    asyncio.run(main())


def test_a_look_that_fails_is_not_the_last(monkeypatch, caplog):
    """What raises is logged, and the next second is another chance."""

    async def main():
        with abate.testing.VirtualClock() as clock:
            app = page.app(local_only=True)
            board = app.state.stream._state
            refresh, broken = board.refresh, [RuntimeError("broken")]
            monkeypatch.setattr(
                board, "refresh", lambda: refresh() if not broken else (_ for _ in ()).throw(broken.pop())
            )
            visitor = Visitor(app).come()
            await clock.asleep(1.5)
            assert visitor.frames() == [1.0]
            app.state.stream.close()
            await visitor.task

    asyncio.run(main())
    assert "next try in 1 s" in caplog.text


# -- served beside a program


def test_served_beside_a_program_it_leaves_nothing_behind():
    """A real server with a browser that stays: the block ends all the same, and so do the thread and the counting."""
    gc.collect()  # pages of other tests
    before, watched = events.sinks, wrapper_versions.on
    policy = abate.Policy(name="served-policy", on=OSError)
    with page.serving(port=0) as address:
        assert wrapper_versions.on
        policy.call(lambda: 1)
        client = httpx.Client(timeout=GUARD)
        with client, client.stream("GET", f"{address}events") as answer:
            for line in answer.iter_lines():
                if line.startswith('data: {"at"'):
                    break
    assert '"served-policy"' in line
    assert (events.sinks, wrapper_versions.on) == (before, watched)
    assert "abate-page" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)


def test_a_browser_that_stays_does_not_hold_up_the_end():
    """The stream is ended from here, not waited for."""
    with httpx.Client(timeout=GUARD) as client:
        with page.serving(port=0) as address:
            answer = client.send(client.build_request("GET", f"{address}events"), stream=True)
            lines = answer.iter_lines()
            next(lines)
        assert list(lines)  # to its end, which is a proper one
    assert "abate-page" not in [thread.name for thread in threading.enumerate()]


def test_an_app_that_is_gone_counts_no_more():
    """Whoever drops the app has its sink removed."""
    gc.collect()
    before = events.sinks
    app = page.app(local_only=True)
    assert len(events.sinks) == len(before) + 1
    del app
    gc.collect()
    assert events.sinks == before


def test_a_port_that_is_taken_is_an_error():
    """It is said at once, and nothing is left installed."""
    gc.collect()
    before = events.sinks
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError), page.serving(port=port):
            pass
    assert events.sinks == before


@pytest.mark.parametrize(("settings", "error"), [({"port": 70_000}, ValueError), ({"port": "80"}, TypeError)])
def test_a_port_that_cannot_be_is_refused(settings, error):
    """With its name and what was expected."""
    with pytest.raises(error, match="port"), page.serving(**settings):
        pass
