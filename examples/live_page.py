"""A small shop with a storm each minute, and the live page beside it.

    python examples/live_page.py                          # then open the address that it says
    python examples/live_page.py --screenshot page.png    # needs playwright, and Chromium as /usr/bin/chromium

Nothing here is sent anywhere: the services are a few lines that sleep and fail.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import warnings
from pathlib import Path

import abate
from abate.observe import page

CYCLE = 60.0
STORM = (20.0, 38.0)
"""Seconds of each cycle in which the payment service is down, and the mail service slow to say no."""
CHROMIUM = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
]
EVERY = 0.2
"""Seconds between two calls of one client."""

chance = random.Random(213)


class Service:
    """Something that answers, most of the time."""

    def __init__(
        self, name: str, flaky: float = 0.0, stormy: bool = False, max_attempts: int = 3, shelter: bool = False
    ):
        self.flaky = flaky
        self.stormy = stormy
        self.down = False
        self.policy = abate.Policy(
            name=name,
            on=(ConnectionError, TimeoutError),
            max_attempts=max_attempts,
            backoff=abate.Backoff(base=0.2, cap=5.0),
            budget=abate.Budget(ratio=0.2, reserve=1),
            shelter=abate.Shelter(name=f"{name} service", patience=8.0) if shelter else None,
        )
        self.ask = self.policy(self._answer)

    async def _answer(self) -> str:
        await asyncio.sleep(chance.uniform(0.01, 0.05))
        if self.stormy and self.down:
            raise ConnectionError("503 from 10.0.3.17: upstream is overloaded")
        if chance.random() < self.flaky:
            raise TimeoutError("no answer within 50 ms")
        return "fine"


payments = Service("payments", stormy=True, max_attempts=4, shelter=True)
mail = Service("mail", flaky=0.01, stormy=True)
search = Service("search", flaky=0.12, max_attempts=2)
others = [Service(name, flaky=0.004) for name in ("catalogue", "sessions", "stock", "prices", "addresses")]
checkout = abate.Policy(name="checkout", on=ConnectionError, max_attempts=2)
orders = abate.open_store("memory:").queue("invoices")


@abate.controller(workers=6, name="shipments", backoff=abate.Backoff(base=0.5, cap=10.0))
async def ship(key: str) -> None:
    """Bring one shipment into step."""
    await asyncio.sleep(chance.uniform(0.02, 0.15))
    if key.endswith("/7"):
        raise ConnectionError("the carrier does not answer")


@abate.consumer(source=orders, workers=3, name="invoices", backoff=abate.Backoff(base=0.5, cap=5.0))
async def invoice(message: abate.work.Message) -> None:
    """Write one invoice."""
    await asyncio.sleep(chance.uniform(0.02, 0.1))
    if chance.random() < 0.02:
        raise abate.PermanentFailure("the order has no address")


async def client(service: Service) -> None:
    """Call again and again, whatever the result."""
    while True:
        await asyncio.sleep(chance.uniform(0.0, 2 * EVERY))
        with contextlib.suppress(OSError, abate.Refused):
            await service.ask()


async def customer() -> None:
    """Buy things; the checkout retries what the payments have retried already, which the page points out."""
    while True:
        await asyncio.sleep(chance.uniform(1.0, 3.0))
        with contextlib.suppress(OSError, abate.Refused):
            await checkout.acall(mail.ask)


async def warehouse() -> None:
    """Bring keys and messages."""
    while True:
        await asyncio.sleep(0.1)
        for _ in range(chance.randrange(6)):
            with contextlib.suppress(abate.QueueFull):
                ship.add(f"parcel/{int(chance.paretovariate(0.8)) % 5000}")
        if chance.random() < 0.5:
            orders.send("an order")


async def weather() -> None:
    """Let the storm come and go."""
    while True:
        into = asyncio.get_running_loop().time() % CYCLE
        payments.down = mail.down = STORM[0] <= into < STORM[1]
        await asyncio.sleep(0.2)


async def shop() -> None:
    """Everything at once."""
    clients = [client(service) for service in (payments, mail, search, *others) for _ in range(12)]
    await asyncio.gather(*clients, customer(), warehouse(), weather(), ship.arun(), invoice.arun())


async def shown(address: str, target: Path) -> None:
    """Take a picture of the page, towards the end of a storm."""
    from playwright.async_api import async_playwright

    into = asyncio.get_running_loop().time() % CYCLE
    await asyncio.sleep((STORM[1] - 5.0 - into) % CYCLE + CYCLE)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path="/usr/bin/chromium", args=CHROMIUM)
        tab = await browser.new_page(viewport={"width": 1280, "height": 1280}, color_scheme="light")
        await tab.goto(address)
        await tab.locator("#policy-rows summary").first.click()
        await asyncio.sleep(2.5)
        await tab.screenshot(path=target)
        await browser.close()


async def main(address: str, target: Path | None) -> None:
    """Run until it is stopped, or until the picture is taken."""
    running = asyncio.ensure_future(shop())
    if target is None:
        await running
        return
    taking = asyncio.ensure_future(shown(address, target))
    await asyncio.wait({running, taking}, return_when=asyncio.FIRST_COMPLETED)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await taking


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A small shop with a storm each minute, and the live page beside it.")
    parser.add_argument("--port", type=int, default=8321)
    parser.add_argument("--screenshot", type=Path, metavar="FILE", help="take a picture of a storm, and end")
    options = parser.parse_args()
    warnings.simplefilter("ignore", abate.LayeredRetryWarning)  # the page shows it
    with page.serving(port=options.port) as where, contextlib.suppress(KeyboardInterrupt):
        print(f"the live page is on {where}", flush=True)
        asyncio.run(main(where, options.screenshot))
