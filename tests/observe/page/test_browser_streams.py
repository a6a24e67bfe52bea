"""The live page in a real Chromium while its streams end: at a server's restart, and now and then on some systems."""

import socket

import abate
from abate.observe import page
from abate.observe.page import shutdown_detection, stream
from tests.clients.asgi_server import serving
from tests.observe.page.browser import playwright, row


def test_it_stays_live_when_streams_end_in_order(tab, monkeypatch):
    """Where the shutdown of a server can't be noticed: the page shows neither a gap nor a lost connection."""
    monkeypatch.setattr(shutdown_detection, "DESCRIPTORS", "/nonexistent")
    monkeypatch.setattr(stream, "MAX_UNWATCHED", 1.5)
    streams = []
    tab.on("request", lambda request: request.url.endswith("/events") and streams.append(request))
    policy = abate.Policy(name="streamed", on=OSError)
    with serving(page.app(local_only=True)) as url:
        tab.goto(url)
        connection = tab.locator("#connection")
        playwright.expect(connection).to_have_text("live")
        tab.evaluate(
            """() => {
                window.states = [];
                const note = () => window.states.push(document.getElementById("connection").textContent);
                new MutationObserver(note).observe(
                    document.getElementById("connection"), {childList: true, characterData: true, subtree: true});
            }"""
        )
        while len(streams) < 4:
            tab.wait_for_timeout(50)
        for _ in range(50):
            policy.call(lambda: 1)
        row(tab, "streamed").locator("summary").click()
        playwright.expect(row(tab, "streamed").locator('[data-f="balance"]')).to_have_text("110")
        assert set(tab.evaluate("window.states")) <= {"live"}
        tab.goto("about:blank")


def test_it_continues_after_a_restart_of_uvicorn(tab):
    """The server ends while the page is open; the page says so, and continues with the next server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    app = page.app(local_only=True)
    connection = tab.locator("#connection")
    with serving(app, port=port, timeout_graceful_shutdown=None) as url:
        tab.goto(url)
        playwright.expect(connection).to_have_text("live")
    playwright.expect(connection).to_have_text("connection lost, trying again")
    with serving(app, port=port):
        playwright.expect(connection).to_have_text("live")
        tab.goto("about:blank")
    assert all("ERR_CONNECTION" in text for text in tab.console), tab.console
    tab.console.clear()
