"""The live page in a real Chromium: it draws, updates, shows a storm first, and reconnects; markup is inert."""

import socket
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from urllib.parse import quote

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import abate
from abate import event_sinks, events
from abate.observe import page
from tests.clients import asgi_server
from tests.observe.page.browser import playwright, row

AXE = Path(__file__).parents[1] / "axe" / "axe.min.js"
SCRIPT = "<img src=x onerror=\"document.title='owned'\">"
"""Markup that a peer may send as a key, a name or the text of an error."""


@pytest.fixture
def shop():
    """Return a healthy policy, one whose calls will fail, and a queue."""
    fine = abate.Policy(name="a-fine-policy", on=OSError)
    stormy = abate.Policy(
        name="stormy-policy",
        on=OSError,
        max_attempts=2,
        backoff=[0.0],
        shelter=abate.Shelter(name="shop", patience=0.05),
    )
    queue = abate.controller(name="busy-queue", workers=3)(print)
    return fine, stormy, queue


@pytest.fixture
def address():
    """Serve the page, and return its URL."""
    with page.serving(port=0) as address:
        yield address


def fail_calls(policy, times=5):
    """Make calls that fail."""
    for _ in range(times):
        with pytest.raises((OSError, abate.Refused)):
            policy.call(abate.testing.Script(*[ConnectionError("down")] * 20))


@contextmanager
def retrying(policy):
    """Emit retries while the block runs, enough for two digits, because axe skips single characters."""
    over = Event()

    def emit():
        while not over.wait(0.05):
            for _ in range(20):
                event_sinks.emit(events.Retry(policy.name, 1, 0.0, "blip", None, OSError("down")))

    thread = Thread(target=emit)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def violations(tab):
    """Return what axe finds wrong, as lines."""
    tab.evaluate(AXE.read_text())
    found = tab.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{wrong['id']}: {wrong['help']}: {node['html']}" for wrong in found["violations"] for node in wrong["nodes"]
    ]


def fits(tab):
    """Return whether the page fits the width of the window."""
    return tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_it_draws_policies_queues_and_charts(tab, address, shop):
    """Policies and queues have rows, the chart is drawn, and the connection is live."""
    tab.goto(address)
    playwright.expect(row(tab, "a-fine-policy")).to_be_visible()
    playwright.expect(row(tab, "busy-queue")).to_be_visible()
    playwright.expect(tab.locator("#connection")).to_have_text("live")
    playwright.expect(tab.locator("#all-chart canvas")).to_be_visible()
    assert tab.title() in ("abate", *(f"({number}) abate" for number in range(1, 50)))


def test_it_updates_without_a_reload(tab, address, shop):
    """Changes after the page was opened are shown."""
    fine, _, queue = shop
    tab.goto(address)
    playwright.expect(row(tab, "busy-queue").locator('[data-f="ready"]')).to_have_text("0")
    queue.add("orders/1")
    queue.add("orders/2")
    playwright.expect(row(tab, "busy-queue").locator('[data-f="ready"]')).to_have_text("2")
    row(tab, "a-fine-policy").locator("summary").click()
    budget = row(tab, "a-fine-policy").locator('[data-f="balance"]')
    playwright.expect(budget).to_have_text("100")
    for _ in range(50):
        fine.call(lambda: 1)
    playwright.expect(budget).to_have_text("110")


def test_it_shows_a_storm_first(tab, address, shop):
    """A policy whose calls fail moves to the top, shows the reason, and is announced."""
    _, stormy, _ = shop
    tab.goto(address)
    playwright.expect(row(tab, "stormy-policy")).to_have_attribute("data-level", "0")
    fail_calls(stormy)
    storm = tab.locator("#policy-rows details.row").first
    playwright.expect(storm.locator('[data-f="name"]')).to_have_text("stormy-policy")
    playwright.expect(storm).to_have_attribute("data-level", "2")
    playwright.expect(storm.locator('[data-f="shelter"]')).to_have_text("probing")
    playwright.expect(tab.locator("#announced")).to_contain_text("stormy-policy: trouble")
    storm.locator("summary").click()
    playwright.expect(storm.locator('[data-f="error"]')).to_contain_text("ConnectionError: down")
    playwright.expect(storm.locator(".more .chart canvas")).to_be_visible()
    playwright.expect(tab.locator("#notices")).to_contain_text("shop is now")


def test_it_reconnects_after_a_restart(tab, shop):
    """It shows that the connection is lost, tries again, and continues with the new server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with page.serving(port=port) as address:
        tab.goto(address)
        playwright.expect(tab.locator("#connection")).to_have_text("live")
    playwright.expect(tab.locator("#connection")).to_have_text("connection lost, trying again")
    later = abate.Policy(name="came-later", on=OSError)
    with page.serving(port=port):
        playwright.expect(tab.locator("#connection")).to_have_text("live")
        playwright.expect(row(tab, later.name)).to_be_visible()
    # the console reports nothing but the lost connection
    assert all("ERR_CONNECTION" in text or "ERR_INCOMPLETE" in text for text in tab.console), tab.console
    tab.console.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_it_is_accessible(tab, address, shop, scheme, width):
    """In light and dark, narrow and wide, axe finds no violation and nothing overflows."""
    _, stormy, queue = shop
    fail_calls(stormy)
    event_sinks.emit(events.Worked(queue.name, "orders/" + "7" * 150, "retry", 0.1, 4, OSError("x" * 1000)))
    event_sinks.emit(events.LayeredRetry("outer" * 20, "inner"))
    tab.emulate_media(color_scheme=scheme)
    tab.set_viewport_size({"width": width, "height": 800})
    tab.goto(address)
    playwright.expect(row(tab, "stormy-policy")).to_have_attribute("data-level", "2")
    for name in ("stormy-policy", "busy-queue"):
        row(tab, name).locator("summary").click()
    playwright.expect(row(tab, "busy-queue").locator('[data-f="failing_keys"]')).to_contain_text("4 times in a row")
    with retrying(stormy):
        playwright.expect(row(tab, "stormy-policy").locator('[data-f="retries"]:not([data-idle])')).to_be_visible()
        assert violations(tab) == []
    assert fits(tab)
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) > 382) == (scheme == "light")


def test_it_works_with_the_keyboard(tab, address, shop):
    """Tab moves from row to row with a visible focus ring, Enter opens one, and a row that moves keeps the focus."""
    _, stormy, _ = shop
    tab.goto(address)
    playwright.expect(row(tab, "stormy-policy")).to_be_visible()
    summary = row(tab, "stormy-policy").locator("summary")
    tab.locator("#filter").focus()
    for _ in range(60):
        tab.keyboard.press("Tab")
        if summary.evaluate("element => element === document.activeElement"):
            break
    playwright.expect(summary).to_be_focused()
    assert summary.evaluate("element => getComputedStyle(element).outlineStyle") == "solid"
    tab.keyboard.press("Enter")
    playwright.expect(row(tab, "stormy-policy")).to_have_attribute("open", "")
    fail_calls(stormy)
    playwright.expect(tab.locator("#policy-rows details.row").first).to_have_attribute("data-level", "2")
    playwright.expect(summary).to_be_focused()


def test_names_can_be_filtered(tab, address, shop):
    """Rows whose name does not contain the text are hidden."""
    tab.goto(address)
    playwright.expect(row(tab, "a-fine-policy")).to_be_visible()
    tab.locator("#filter").fill("STORMY")
    playwright.expect(row(tab, "a-fine-policy")).to_be_hidden()
    playwright.expect(row(tab, "stormy-policy")).to_be_visible()


def test_reduced_motion_disables_transitions(tab, address, shop):
    """Gauges change without animation."""
    tab.emulate_media(reduced_motion="reduce")
    tab.goto(address)
    gauge = row(tab, "a-fine-policy").locator('[data-f="gauge"]')
    assert gauge.evaluate("element => getComputedStyle(element).transitionProperty") == "none"


@pytest.mark.parametrize("name", [SCRIPT, "__proto__", "constructor"])
def test_data_from_a_peer_is_shown_as_text(tab, address, name):
    """Markup in a name, a key, an error, a reason and a layer is displayed and not interpreted."""
    policy = abate.Policy(name=name, on=OSError)
    queue = abate.controller(name=f"queue {name}")(print)
    for error in (OSError(SCRIPT),):
        event_sinks.emit(events.Retry(name, 1, 0.1, SCRIPT, None, error))
        event_sinks.emit(events.Worked(queue.name, SCRIPT, "retry", 0.1, 2, error))
        event_sinks.emit(events.Worked(queue.name, SCRIPT, "retry", 0.1, 3, error))
    event_sinks.emit(events.Buried(queue.name, SCRIPT, "permanent", SCRIPT))
    event_sinks.emit(events.LayeredRetry(policy.name, SCRIPT))
    event_sinks.emit(events.SourceFailed(queue.name, SCRIPT, OSError(SCRIPT), 1.0))
    tab.goto(address)
    rows = tab.locator("details.row").filter(has=tab.locator("summary b", has_text=name))
    playwright.expect(rows).to_have_count(2)
    for each in rows.all():
        each.locator("summary").click()
    playwright.expect(tab.locator('[data-f="letters"]').filter(has_text=SCRIPT)).to_have_count(1)
    playwright.expect(tab.locator('[data-f="hottest"]').filter(has_text=SCRIPT)).to_have_count(1)
    playwright.expect(tab.locator('[data-f="error"]').filter(has_text=SCRIPT)).to_have_count(1)
    playwright.expect(tab.locator("#layers")).to_contain_text(SCRIPT)
    assert tab.locator("main img").count() == 0
    assert "owned" not in tab.title()


SECRET = "a secret; of some längth"
REFUSED = "Failed to load resource: the server responded with a status of 40"
"""What Chromium's console says about a form that is served instead of the page."""


def refused(tab, times):
    """Return whether the console reported that many refusals and nothing else; clear it."""
    console, tab.console[:] = tab.console[:], []
    return len(console) == times and all(text.startswith(REFUSED) for text in console)


@pytest.fixture(params=["served", "mounted"])
def guarded(request):
    """Serve the page with a token: by its own server, and mounted in an app under uvicorn."""
    if request.param == "served":
        with page.serving(port=0, token=SECRET) as address:
            yield address
    else:
        app = Starlette(routes=[Mount("/ops/abate", page.app(SECRET))])
        with asgi_server.serving(app) as address:
            yield f"{address}/ops/abate/"


def urls_of(tab):
    """Return a list that collects the URLs of the tab's requests from here on."""
    urls = []
    tab.on("request", lambda request: urls.append(request.url))
    return urls


def test_the_token_is_sent_by_a_form_and_never_in_a_url(guarded, tab):
    """A wrong token is reported; the right one is remembered in a cookie that scripts can't read."""
    urls = urls_of(tab)
    tab.goto(guarded)
    playwright.expect(tab.get_by_label("Token of this page")).to_be_focused()
    tab.keyboard.type("wrong")
    tab.keyboard.press("Enter")
    playwright.expect(tab.get_by_role("alert")).to_have_text("That is not the token of this page.")
    tab.get_by_label("Token of this page").fill(SECRET)
    tab.get_by_role("button", name="Sign in").click()
    playwright.expect(tab.locator("#connection")).to_have_text("live")
    assert tab.url == guarded
    assert refused(tab, 2)
    tab.reload()
    playwright.expect(tab.locator("#connection")).to_have_text("live")
    assert tab.evaluate("document.cookie") == ""
    assert not any("token" in url or "?" in url for url in urls)


def test_a_link_may_have_the_token_in_its_fragment(guarded, tab):
    """It signs in, also if the form is open already, and the fragment is removed; browsers don't send fragments."""
    urls, link = urls_of(tab), f"{guarded}#token={quote(SECRET)}"
    tab.goto(guarded)
    tab.goto(link)  # changes the fragment only: nothing is loaded
    playwright.expect(tab.locator("#connection")).to_have_text("live")
    tab.goto(f"{link}again")
    tab.wait_for_url(guarded)
    tab.context.clear_cookies()
    tab.goto("about:blank")
    tab.goto(link)
    playwright.expect(tab.locator("#connection")).to_have_text("live")
    assert tab.url == guarded
    assert refused(tab, 2)
    assert not any("?" in url or quote(SECRET) in url.partition("#")[0] for url in urls)


def test_a_token_in_the_query_is_refused_with_the_reason(guarded, tab):
    """Though the token is right, the form is shown, and the query is removed from the URL."""
    tab.goto(f"{guarded}?token={quote(SECRET)}")
    playwright.expect(tab.get_by_role("alert")).to_contain_text("servers and proxies write addresses to their logs")
    tab.wait_for_url(guarded)
    tab.get_by_label("Token of this page").fill(SECRET)
    tab.keyboard.press("Enter")
    playwright.expect(tab.locator("#connection")).to_have_text("live")
    assert refused(tab, 1)


def test_the_form_works_without_javascript(chromium, guarded):
    """Signing in leads to the page, which says that it needs JavaScript."""
    context = chromium.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(guarded)
    tab.get_by_label("Token of this page").fill(SECRET)
    tab.keyboard.press("Enter")
    playwright.expect(tab).to_have_title("abate")
    assert tab.url == guarded
    context.close()


def test_a_form_of_another_site_can_not_sign_in(guarded, tab):
    """It is refused by its origin, though the token is right."""
    port = guarded.split(":")[2].partition("/")[0]
    form = f'<form method="post" action="{guarded}"><input name="token" value="{SECRET}"></form>'
    tab.route("http://evil.example/", lambda route: route.fulfill(body=form, content_type="text/html; charset=utf-8"))
    tab.goto("http://evil.example/")
    with tab.expect_response(lambda response: f":{port}/" in response.url) as answer:
        tab.evaluate("document.querySelector('form').submit()")
    assert (answer.value.status, "set-cookie" in answer.value.headers) == (403, False)
    playwright.expect(tab.get_by_role("alert")).to_have_text("That came from another page: sign in here.")
    tab.console.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_the_sign_in_form_is_accessible(guarded, tab, scheme, width):
    """In light and dark, narrow and wide, axe finds no violation and nothing overflows."""
    tab.emulate_media(color_scheme=scheme)
    tab.set_viewport_size({"width": width, "height": 800})
    tab.goto(guarded)
    assert violations(tab) == []
    tab.get_by_label("Token of this page").fill("wrong")
    tab.keyboard.press("Tab")
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.keyboard.press("Enter")
    playwright.expect(tab.get_by_role("alert")).to_be_visible()
    assert violations(tab) == []
    assert fits(tab)
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) > 382) == (scheme == "light")
    assert refused(tab, 2)
