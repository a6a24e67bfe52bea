"""Fixtures of the tests in a browser."""

import pytest


@pytest.fixture(scope="module")
def chromium():
    """Launch the browser."""
    from tests.observe.page.browser import ARGUMENTS, CHROMIUM, playwright  # skips a test without one

    with playwright.sync_playwright() as control:
        browser = control.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium):
    """Open a tab; the test fails if its console has warnings or errors that the test did not clear."""
    from tests.observe.page.browser import GUARD

    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    tab = context.new_page()
    tab.set_default_timeout(GUARD)
    tab.console = []
    tab.on("console", lambda message: message.type in ("error", "warning") and tab.console.append(message.text))
    tab.on("pageerror", lambda error: tab.console.append(str(error)))
    yield tab
    context.close()
    assert tab.console == []
