"""The candidates: each is a function from the settings to a decorator for ``async def fetch(request)``.

All get the same attempts, base and cap, and no more time than the peers would wait in all. A candidate is made once per
policy of the scenario: what two policies know, they don't share.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from transport import ERRORS, Unavailable

import abate

Fetch = Callable[[Any], Awaitable[Any]]
Decorator = Callable[[Fetch], Fetch]


@dataclass(frozen=True)
class Settings:
    max_attempts: int = 6
    base: float = 0.1
    cap: float = 2.0
    jitter: float = 1.0
    """Seconds that tenacity's exponential jitter and stamina add at most, their default."""
    rate: float = 1.0
    """Requests per second of one policy, for a budget that has to be told."""

    @property
    def patience(self) -> float:
        """What tenacity and stamina may wait in all: the bound of all candidates."""
        waits = (min(self.cap, self.base * 2**retry + self.jitter) for retry in range(self.max_attempts - 1))
        return max(1.0, sum(waits))


CANDIDATES: dict[str, Callable[[Settings], Decorator]] = {}
NOTES: dict[str, str] = {}


def candidate(name: str, note: str = "") -> Callable[[Any], Any]:
    def add(make: Any) -> Any:
        CANDIDATES[name] = make
        NOTES[name] = note
        return make

    return add


# -- by hand


@candidate("no retry")
def no_retry(settings: Settings) -> Decorator:
    return lambda fetch: fetch


@candidate("naive", "capped exponential, no jitter")
def naive(settings: Settings) -> Decorator:
    def decorate(fetch: Fetch) -> Fetch:
        async def call(request: Any) -> Any:
            for retry in range(settings.max_attempts - 1):
                try:
                    return await fetch(request)
                except ERRORS:
                    await asyncio.sleep(min(settings.cap, settings.base * 2**retry))
            return await fetch(request)

        return call

    return decorate


# -- the peers


def tenacity_retry(settings: Settings, wait: Any) -> Decorator:
    import tenacity

    return tenacity.retry(
        retry=tenacity.retry_if_exception_type(ERRORS),
        stop=tenacity.stop_after_attempt(settings.max_attempts),
        wait=wait,
        reraise=True,
    )


@candidate("tenacity, random", "`wait_random_exponential`")
def tenacity_random(settings: Settings) -> Decorator:
    import tenacity

    return tenacity_retry(settings, tenacity.wait_random_exponential(multiplier=settings.base, max=settings.cap))


@candidate("tenacity, jitter", "`wait_exponential_jitter`, its jitter of up to 1 s")
def tenacity_jitter(settings: Settings) -> Decorator:
    import tenacity

    wait = tenacity.wait_exponential_jitter(initial=settings.base, max=settings.cap, jitter=settings.jitter)
    return tenacity_retry(settings, wait)


@candidate("stamina", "its jitter of up to 1 s")
def stamina(settings: Settings) -> Decorator:
    import stamina

    return stamina.retry(
        on=ERRORS,
        attempts=settings.max_attempts,
        timeout=None,
        wait_initial=settings.base,
        wait_max=settings.cap,
        wait_jitter=settings.jitter,
    )


@candidate("backoff", "full jitter")
def backoff(settings: Settings) -> Decorator:
    import backoff

    return backoff.on_exception(
        backoff.expo, ERRORS, max_tries=settings.max_attempts, factor=settings.base, max_value=settings.cap
    )


def nopanic_retry(settings: Settings, budget: Any) -> Decorator:
    import nopanic

    waits = nopanic.backoff.full_jitter(settings.base, 2.0, settings.cap)
    return nopanic.retry(attempts=settings.max_attempts, on=ERRORS, backoff=waits, budget=budget)


@candidate("nopanic", "full jitter, minds Retry-After")
def nopanic(settings: Settings) -> Decorator:
    return nopanic_retry(settings, None)


@candidate("nopanic, budget", "20 % of the calls and 1/s")
def nopanic_budget(settings: Settings) -> Decorator:
    import nopanic

    return nopanic_retry(settings, nopanic.RetryBudget(ratio=0.2))


def redress_retry(settings: Settings, budget: Any) -> Decorator:
    import redress
    from redress.extras import http_retry_after_classifier
    from redress.strategies import decorrelated_jitter, retry_after_or

    policy = redress.AsyncPolicy(
        retry=redress.AsyncRetry(
            classifier=http_retry_after_classifier,
            strategy=retry_after_or(decorrelated_jitter(settings.base, settings.cap)),
            max_attempts=settings.max_attempts,
            budget=budget,
        )
    )

    def decorate(fetch: Fetch) -> Fetch:
        return lambda request: policy.call(functools.partial(fetch, request))

    return decorate


@candidate("redress", "decorrelated jitter; minds Retry-After with a 429, not with a 503")
def redress(settings: Settings) -> Decorator:
    return redress_retry(settings, None)


@candidate("redress, budget", "a fixed number: 20 % of the rate that it is told, and 1/s")
def redress_budget(settings: Settings) -> Decorator:
    import redress

    return redress_retry(settings, redress.Budget(max_retries=int(10 + 0.2 * 10 * settings.rate), window_s=10.0))


@candidate("aiohttp-retry", "`ExponentialRetry`, without jitter as it is; on the common transport")
def aiohttp_retry(settings: Settings) -> Decorator:
    from aiohttp_retry import ExponentialRetry, RetryClient

    options = ExponentialRetry(
        attempts=settings.max_attempts,
        start_timeout=settings.base / 2,  # it doubles before the first wait
        max_timeout=settings.cap,
        exceptions={TimeoutError, ConnectionError},
    )

    def decorate(fetch: Fetch) -> Fetch:
        async def call(request: Any) -> None:
            async def send(method: str, url: str, **_: Any) -> Any:
                try:
                    await fetch(request)
                except Unavailable as error:
                    return SimpleNamespace(status=error.status, method=method, headers=error.headers)
                return SimpleNamespace(status=200, method=method, headers={})

            client = RetryClient(client_session=SimpleNamespace(request=send), retry_options=options)
            answer = await client.get("/")
            if answer.status != 200:
                raise Unavailable(answer.status, None)

        return call

    return decorate


# -- abate, whole, and with one part switched off at a time


def abate_policy(settings: Settings, jitter: Any = "full", **changes: Any) -> abate.Policy:
    given = {
        "name": "storm",
        "on": (abate.http.transient, *ERRORS),
        "max_attempts": settings.max_attempts,
        "timeout": settings.patience,
        "backoff": abate.Backoff(base=settings.base, cap=settings.cap, jitter=jitter),
        "shelter": abate.Shelter(patience=settings.patience),
    }
    return abate.Policy(**given | changes)


@candidate("abate, shelter")
def abate_shelter(settings: Settings) -> Decorator:
    return abate_policy(settings)


@candidate("abate, no shelter", "full jitter and the default budget, fails fast")
def abate_no_shelter(settings: Settings) -> Decorator:
    return abate_policy(settings, shelter=None)


@candidate("abate, no jitter")
def abate_no_jitter(settings: Settings) -> Decorator:
    return abate_policy(settings, jitter="none")


def hintless(error: Exception) -> abate.Ruling | None:
    """The ruling on a 503 by a client that does not read its headers."""
    return abate.Ruling.overload() if isinstance(error, Unavailable) else None


@candidate("abate, no hint", "Retry-After is not read")
def abate_no_hint(settings: Settings) -> Decorator:
    return abate_policy(settings, on=(hintless, *ERRORS))


@candidate("abate, no budget", "`Budget.unlimited()`")
def abate_no_budget(settings: Settings) -> Decorator:
    return abate_policy(settings, budget=abate.Budget.unlimited())


@candidate("abate, layers retry", "each layer raises an error of its own that tells nothing of the one inside")
def abate_layers(settings: Settings) -> Decorator:
    policy = abate_policy(settings)

    def decorate(fetch: Fetch) -> Fetch:
        inner = policy(fetch)

        async def call(request: Any) -> Any:
            failure: Exception | None = None
            try:
                return await inner(request)
            except Exception as error:
                failure = error
            # outside of the except clause, so that not even its context leads back to what was given up on
            raise Unavailable(503, getattr(failure, "retry_after", None))

        return call

    return decorate


@candidate("abate, small shelter", "of 20 places")
def abate_small(settings: Settings) -> Decorator:
    return abate_policy(settings, shelter=abate.Shelter(capacity=20, patience=settings.patience))


PEERS = (
    "no retry",
    "naive",
    "tenacity, random",
    "tenacity, jitter",
    "stamina",
    "backoff",
    "nopanic",
    "nopanic, budget",
    "redress",
    "redress, budget",
    "aiohttp-retry",
)
OURS = ("abate, no shelter", "abate, shelter")
PARTS = ("abate, no jitter", "abate, no hint", "abate, no budget", "abate, layers retry")
LIKE_ANOTHER = ("backoff", "nopanic", "redress", "aiohttp-retry")
"""Those that a short run leaves out: another peer does much the same."""


def quiet() -> None:
    """Candidates that log each retry or warn of layers should not be measured by that."""
    import stamina

    stamina.instrumentation.set_on_retry_hooks([])  # or it imports what it logs with at the first retry
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore", abate.LayeredRetryWarning)
