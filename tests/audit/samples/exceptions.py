import asyncio
import time

import tenacity
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random


def anything(url):
    for attempt in range(3):
        try:
            return fetch(url)
        except Exception:  # found: broad-except
            time.sleep(1)


def even_ctrl_c(url):
    for attempt in range(3):
        try:
            return fetch(url)
        except:  # found: broad-except, cancellation-caught
            time.sleep(1)


async def cancelled(url):
    for attempt in range(3):
        try:
            return await fetch(url)
        except (asyncio.CancelledError, ConnectionError):  # found: cancellation-caught
            await asyncio.sleep(1)


@retry(stop=stop_after_attempt(3), wait=wait_random(1, 2))  # found: broad-except
def decorated(): ...


@retry(stop=stop_after_attempt(3), wait=wait_random(1, 2), retry=retry_if_exception_type(BaseException))  # found: broad-except, cancellation-caught
def all_of_them(): ...


# ── sound ────────────────────────────────────────────────────────────────────────────────────────────────────


def decided(url):
    for attempt in range(3):
        try:
            return fetch(url)
        except Exception as error:
            if not is_transient(error):
                raise
            time.sleep(1)


def passed_on(url):
    for attempt in range(3):
        try:
            return fetch(url)
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException:  # found: broad-except
            time.sleep(1)


def raised(url):
    for attempt in range(3):
        try:
            return fetch(url)
        except ConnectionError:
            time.sleep(1)
        except Exception:
            raise RuntimeError(url)


@retry(stop=stop_after_attempt(3), wait=wait_random(1, 2), retry=retry_if_exception_type((ConnectionError, TimeoutError)))
def named(): ...


@retry(stop=stop_after_attempt(3), wait=wait_random(1, 2), retry=tenacity.retry_if_exception(is_transient))
def by_predicate(): ...
