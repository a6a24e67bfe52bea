"""The live page's event stream, and the page's own server."""

import asyncio
import gc
import json
import socket
import threading

import httpx
import pytest

import abate
from abate import event_sinks
from abate.call.counters import wrapper_versions
from abate.observe import page
from abate.observe.page.state import PageState

GUARD = 30.0
"""Seconds after which a test fails because something hangs."""


class Visitor:
    """An ASGI client of the event stream, which can stop reading."""

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

    def connect(self):
        self.task = asyncio.ensure_future(self.app(self.scope, self.receive, self.send))
        return self

    def frames(self):
        """Return the time of each frame received."""
        text = b"".join(self.body).decode()
        return [json.loads(line[6:])["at"] for line in text.splitlines() if line.startswith('data: {"at"')]


async def until(condition):
    """Wait until the condition is true: this event loop brings it about."""
    async with asyncio.timeout(GUARD):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_browser_gets_the_history_and_then_an_update_each_second():
    """Frames are one second apart, until it disconnects."""

    async def main():
        with abate.testing.VirtualClock(start=100.0) as clock:
            app = page.app(local_only=True)
            visitor = Visitor(app).connect()
            await clock.asleep(3.5)
            assert visitor.body[0].startswith(b"retry: 1000\nevent: history\ndata: {")
            assert visitor.frames() == [100.0, 101.0, 102.0, 103.0]
            visitor.left.set()
            await visitor.task
            assert app.state.stream.visitors == 0
            app.state.stream.close()

    asyncio.run(main())


def test_a_slow_browser_gets_the_newest_frame():
    """Missed frames are skipped: only the one that is being sent is kept for it."""

    async def main():
        with abate.testing.VirtualClock() as clock:
            app = page.app(local_only=True)
            visitor = Visitor(app).connect()
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


def test_a_browser_that_stops_reading_is_disconnected():
    """After `patience` its slot is free again; another browser is not affected."""

    async def main():
        with abate.testing.VirtualClock() as clock:
            app = page.app(local_only=True, patience=15.0)
            reader, sleeper = Visitor(app).connect(), Visitor(app).connect()
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


def test_a_browser_beyond_the_limit_gets_a_503():
    """A slot that becomes free can be taken."""

    async def main():
        app = page.app(local_only=True, max_visitors=2)
        first, second = Visitor(app).connect(), Visitor(app).connect()
        await until(lambda: first.frames() and second.frames())
        third = Visitor(app).connect()
        await third.task
        assert third.status == 503
        first.left.set()
        await first.task
        fourth = Visitor(app).connect()
        await until(lambda: fourth.frames())
        app.state.stream.close()
        await asyncio.gather(second.task, fourth.task)

    asyncio.run(main())


def test_head_of_the_stream_ends_at_once():
    """HEAD has no body."""

    async def main():
        app = page.app(local_only=True)
        visitor = Visitor(app, "HEAD").connect()
        await visitor.task
        assert (visitor.status, visitor.body, visitor.ended) == (200, [b""], True)
        app.state.stream.close()

    asyncio.run(main())


def test_a_failing_refresh_is_repeated(monkeypatch, caplog):
    """The error is logged, and the next refresh follows a second later."""

    refresh, errors = PageState.refresh, [RuntimeError("broken")]

    def refresh_or_raise(state):
        if errors:
            raise errors.pop()
        refresh(state)

    monkeypatch.setattr(PageState, "refresh", refresh_or_raise)

    async def main():
        with abate.testing.VirtualClock() as clock:
            app = page.app(local_only=True)
            visitor = Visitor(app).connect()
            await clock.asleep(1.5)
            assert visitor.frames() == [1.0]
            app.state.stream.close()
            await visitor.task

    asyncio.run(main())
    assert "next try in 1 s" in caplog.text


# -- the page's own server


def test_the_server_leaves_nothing_behind():
    """The block ends while a browser is connected; its thread, its sink and the counting end with it."""
    gc.collect()  # drops the pages of other tests
    before, watched = event_sinks.installed, wrapper_versions.on
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
    assert (event_sinks.installed, wrapper_versions.on) == (before, watched)
    assert "abate-page" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)


def test_a_connected_browser_does_not_delay_the_end():
    """The server ends the stream."""
    with httpx.Client(timeout=GUARD) as client:
        with page.serving(port=0) as address:
            answer = client.send(client.build_request("GET", f"{address}events"), stream=True)
            lines = answer.iter_lines()
            next(lines)
        assert list(lines)  # the response is complete
    assert "abate-page" not in [thread.name for thread in threading.enumerate()]


def test_a_collected_app_removes_its_sink():
    """No event is counted for it any more."""
    gc.collect()
    before = event_sinks.installed
    app = page.app(local_only=True)
    assert len(event_sinks.installed) == len(before) + 1
    del app
    gc.collect()
    assert event_sinks.installed == before


def test_a_port_in_use_is_an_error():
    """It is raised at once, and no sink stays installed."""
    gc.collect()
    before = event_sinks.installed
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError), page.serving(port=port):
            pass
    assert event_sinks.installed == before


@pytest.mark.parametrize(("settings", "error"), [({"port": 70_000}, ValueError), ({"port": "80"}, TypeError)])
def test_an_impossible_port_is_refused(settings, error):
    """The error names the setting and what was expected."""
    with pytest.raises(error, match="port"), page.serving(**settings):
        pass
