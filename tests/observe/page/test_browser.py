"""The live page in a real Chromium: it draws, goes on, shows a storm, outlives a restart, and harms nobody."""

import socket
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from urllib.parse import quote

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import abate
from abate import events
from abate.observe import page
from tests.clients import asgi_server
from tests.greenlets import REASON, crashes

if crashes():
    pytest.skip(f"{REASON}, and playwright needs it", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = Path("/usr/bin/chromium")
if not CHROMIUM.exists():
    pytest.skip(f"there is no Chromium at {CHROMIUM}", allow_module_level=True)

ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
]
GUARD = 30_000
"""Milliseconds after which a test takes it that something hangs."""
AXE = Path(__file__).parents[1] / "axe" / "axe.min.js"
SCRIPT = "<img src=x onerror=\"document.title='owned'\">"
"""What a peer may send as a key, a name or the text of an error."""


@pytest.fixture(scope="module")
def chromium():
    """The browser."""
    with playwright.sync_playwright() as control:
        browser = control.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium):
    """A tab of it; whatever its console says but ordinary words fails the test, unless it was `expected`."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    tab.set_default_timeout(GUARD)
    tab.said = []
    tab.on("console", lambda message: message.type in ("error", "warning") and tab.said.append(message.text))
    tab.on("pageerror", lambda error: tab.said.append(str(error)))
    yield tab
    context.close()
    assert tab.said == []


@pytest.fixture
def shop():
    """A policy that is fine, one whose calls all fail, and a queue with keys that fail."""
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
    """The page, served."""
    with page.serving(port=0) as address:
        yield address


def blow(policy, times=5):
    """A storm: real calls that fail."""
    for _ in range(times):
        with pytest.raises((OSError, abate.Refused)):
            policy.call(abate.testing.Script(*[ConnectionError("down")] * 20))


@contextmanager
def blowing(policy):
    """Retries, as long as the block lasts: so many that they have two digits, as axe does not judge a single one."""
    over = Event()

    def blow():
        while not over.wait(0.05):
            for _ in range(20):
                events.emit(events.Retry(policy.name, 1, 0.0, "blip", None, OSError("down")))

    thread = Thread(target=blow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def row(tab, name):
    """The row of a policy or a queue."""
    return tab.locator("details.row").filter(has=tab.locator("summary b", has_text=name)).first


def accessible(tab):
    """What axe finds wrong, as lines."""
    tab.evaluate(AXE.read_text())
    found = tab.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{wrong['id']}: {wrong['help']}: {node['html']}" for wrong in found["violations"] for node in wrong["nodes"]
    ]


def fits(tab):
    """Is there nothing to scroll to the side?"""
    return tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_it_draws_what_is_there(tab, address, shop):
    """Policies and queues have rows, the charts are drawn, and it says that it is live."""
    tab.goto(address)
    playwright.expect(row(tab, "a-fine-policy")).to_be_visible()
    playwright.expect(row(tab, "busy-queue")).to_be_visible()
    playwright.expect(tab.locator("#connection")).to_have_text("live")
    playwright.expect(tab.locator("#all-chart canvas")).to_be_visible()
    assert tab.title() in ("abate", *(f"({number}) abate" for number in range(1, 50)))


def test_it_goes_on_by_itself(tab, address, shop):
    """What happens after the page was opened is shown on it."""
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


def test_it_shows_a_storm_before_everything_else(tab, address, shop):
    """A policy whose calls fail moves to the top, says why, and is announced."""
    _, stormy, _ = shop
    tab.goto(address)
    playwright.expect(row(tab, "stormy-policy")).to_have_attribute("data-level", "0")
    blow(stormy)
    storm = tab.locator("#policy-rows details.row").first
    playwright.expect(storm.locator('[data-f="name"]')).to_have_text("stormy-policy")
    playwright.expect(storm).to_have_attribute("data-level", "2")
    playwright.expect(storm.locator('[data-f="shelter"]')).to_have_text("probing")
    playwright.expect(tab.locator("#announced")).to_contain_text("stormy-policy: trouble")
    storm.locator("summary").click()
    playwright.expect(storm.locator('[data-f="error"]')).to_contain_text("ConnectionError: down")
    playwright.expect(storm.locator(".more .chart canvas")).to_be_visible()
    playwright.expect(tab.locator("#notices")).to_contain_text("shop is now")


def test_it_outlives_the_server(tab, shop):
    """It says that the connection is lost, tries again, and goes on where the server does."""
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
    # that the server was gone is all that the console has to say
    assert all("ERR_CONNECTION" in text or "ERR_INCOMPLETE" in text for text in tab.said), tab.said
    tab.said.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_everybody_can_read_it(tab, address, shop, scheme, width):
    """Light and dark, on a phone and on a desk: axe finds nothing, and nothing sticks out."""
    _, stormy, queue = shop
    blow(stormy)
    events.emit(events.Worked(queue.name, "orders/" + "7" * 150, "retry", 0.1, 4, OSError("x" * 1000)))
    events.emit(events.LayeredRetry("outer" * 20, "inner"))
    tab.emulate_media(color_scheme=scheme)
    tab.set_viewport_size({"width": width, "height": 800})
    tab.goto(address)
    playwright.expect(row(tab, "stormy-policy")).to_have_attribute("data-level", "2")
    for name in ("stormy-policy", "busy-queue"):
        row(tab, name).locator("summary").click()
    playwright.expect(row(tab, "busy-queue").locator('[data-f="failing_keys"]')).to_contain_text("4 times in a row")
    with blowing(stormy):
        playwright.expect(row(tab, "stormy-policy").locator('[data-f="retries"]:not([data-idle])')).to_be_visible()
        assert accessible(tab) == []
    assert fits(tab)
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) > 382) == (scheme == "light")


def test_it_can_be_used_without_a_mouse(tab, address, shop):
    """Tab goes from row to row, with a ring around it, Enter opens one, and a row that moves keeps the focus."""
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
    blow(stormy)
    playwright.expect(tab.locator("#policy-rows details.row").first).to_have_attribute("data-level", "2")
    playwright.expect(summary).to_be_focused()


def test_names_can_be_filtered(tab, address, shop):
    """Of many rows, those with a word in their name are left."""
    tab.goto(address)
    playwright.expect(row(tab, "a-fine-policy")).to_be_visible()
    tab.locator("#filter").fill("STORMY")
    playwright.expect(row(tab, "a-fine-policy")).to_be_hidden()
    playwright.expect(row(tab, "stormy-policy")).to_be_visible()


def test_nothing_moves_for_who_wants_no_motion(tab, address, shop):
    """Gauges jump."""
    tab.emulate_media(reduced_motion="reduce")
    tab.goto(address)
    gauge = row(tab, "a-fine-policy").locator('[data-f="gauge"]')
    assert gauge.evaluate("element => getComputedStyle(element).transitionProperty") == "none"


@pytest.mark.parametrize("name", [SCRIPT, "__proto__", "constructor"])
def test_what_a_peer_sent_is_text(tab, address, name):
    """Markup in a name, a key, an error, a reason and a layer is shown as it was written, and does nothing."""
    policy = abate.Policy(name=name, on=OSError)
    queue = abate.controller(name=f"queue {name}")(print)
    for error in (OSError(SCRIPT),):
        events.emit(events.Retry(name, 1, 0.1, SCRIPT, None, error))
        events.emit(events.Worked(queue.name, SCRIPT, "retry", 0.1, 2, error))
        events.emit(events.Worked(queue.name, SCRIPT, "retry", 0.1, 3, error))
    events.emit(events.Buried(queue.name, SCRIPT, "permanent", SCRIPT))
    events.emit(events.LayeredRetry(policy.name, SCRIPT))
    events.emit(events.SourceFailed(queue.name, SCRIPT, OSError(SCRIPT), 1.0))
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
"""What Chromium's console says of a form that is served instead of the page."""


def refused(tab, times):
    """Has the console said so many times that something was refused, and nothing else?"""
    said, tab.said[:] = tab.said[:], []
    return len(said) == times and all(text.startswith(REFUSED) for text in said)


@pytest.fixture(params=["served", "mounted"])
def guarded(request):
    """The page with a token: beside a program, and below a path in an app that uvicorn serves."""
    if request.param == "served":
        with page.serving(port=0, token=SECRET) as address:
            yield address
    else:
        app = Starlette(routes=[Mount("/ops/abate", page.app(SECRET))])
        with asgi_server.serving(app) as address:
            yield f"{address}/ops/abate/"


def urls_of(tab):
    """All addresses that the tab asks for from here on."""
    urls = []
    tab.on("request", lambda request: urls.append(request.url))
    return urls


def test_the_token_is_typed_into_a_form_and_sent_in_no_address(guarded, tab):
    """A wrong one is told; the right one is asked for no more, and no script sees the cookie."""
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


def test_a_link_carries_the_token_behind_a_hash_which_is_not_sent(guarded, tab):
    """It signs in, also where the form is there already, and leaves the address; who has signed in keeps it no more."""
    urls, link = urls_of(tab), f"{guarded}#token={quote(SECRET)}"
    tab.goto(guarded)
    tab.goto(link)  # which loads nothing
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


def test_a_token_in_the_address_is_refused_with_the_reason(guarded, tab):
    """Though it is right; the form is there for it, and the address is cleaned."""
    tab.goto(f"{guarded}?token={quote(SECRET)}")
    playwright.expect(tab.get_by_role("alert")).to_contain_text("servers and proxies write addresses to their logs")
    tab.wait_for_url(guarded)
    tab.get_by_label("Token of this page").fill(SECRET)
    tab.keyboard.press("Enter")
    playwright.expect(tab.locator("#connection")).to_have_text("live")
    assert refused(tab, 1)


def test_the_form_works_without_javascript(chromium, guarded):
    """It leads to the page, which says that it needs it."""
    context = chromium.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(guarded)
    tab.get_by_label("Token of this page").fill(SECRET)
    tab.keyboard.press("Enter")
    playwright.expect(tab).to_have_title("abate")
    assert tab.url == guarded
    context.close()


def test_a_foreign_page_can_sign_nobody_in(guarded, tab):
    """Its form is sent, and refused by where it comes from, though the token is right."""
    port = guarded.split(":")[2].partition("/")[0]
    form = f'<form method="post" action="{guarded}"><input name="token" value="{SECRET}"></form>'
    tab.route("http://evil.example/", lambda route: route.fulfill(body=form, content_type="text/html; charset=utf-8"))
    tab.goto("http://evil.example/")
    with tab.expect_response(lambda response: f":{port}/" in response.url) as answer:
        tab.evaluate("document.querySelector('form').submit()")
    assert (answer.value.status, "set-cookie" in answer.value.headers) == (403, False)
    playwright.expect(tab.get_by_role("alert")).to_have_text("That came from another page: sign in here.")
    tab.said.clear()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_everybody_can_sign_in(guarded, tab, scheme, width):
    """Light and dark, on a phone and on a desk: axe finds nothing, and nothing sticks out."""
    tab.emulate_media(color_scheme=scheme)
    tab.set_viewport_size({"width": width, "height": 800})
    tab.goto(guarded)
    assert accessible(tab) == []
    tab.get_by_label("Token of this page").fill("wrong")
    tab.keyboard.press("Tab")
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.keyboard.press("Enter")
    playwright.expect(tab.get_by_role("alert")).to_be_visible()
    assert accessible(tab) == []
    assert fits(tab)
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) > 382) == (scheme == "light")
    assert refused(tab, 2)
