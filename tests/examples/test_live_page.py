"""The example of the live page: it runs, and its page shows it."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import abate

pytest.importorskip("starlette")
GUARD = 30.0
"""Seconds after which a test takes it that something hangs."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "live_page.py"


def test_the_shop_is_on_its_page():
    """Its policies, its queues and its store are there."""
    environment = {**os.environ, "PYTHONPATH": str(Path(abate.__file__).parents[1])}
    line = [sys.executable, str(EXAMPLE), "--port", "0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment) as shop:
        try:
            address = shop.stdout.readline().split()[-1]
            with httpx.stream("GET", f"{address}events", timeout=GUARD) as answer:
                frame = next(text for text in answer.iter_lines() if text.startswith('data: {"at"'))
            for name in ("payments", "mail", "shipments", "invoices", "memory:"):
                assert f'"name":"{name}"' in frame
        finally:
            shop.kill()
