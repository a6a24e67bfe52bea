"""A real Chromium for tests of the live page; importing this skips the module if there is none."""

from pathlib import Path

import pytest

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
"""Milliseconds after which a test fails because something hangs."""


def row(tab, name):
    """Return the row of a policy or a queue."""
    return tab.locator("details.row").filter(has=tab.locator("summary b", has_text=name)).first
