import random
import time

import stamina
from tenacity import retry, stop_after_attempt, wait_exponential_jitter
from urllib3 import Retry


def capped_last(url):
    for attempt in range(10):  # found: jitter-lost-at-cap
        try:
            return fetch(url)
        except ConnectionError:
            time.sleep(min(60, 2**attempt + random.random()))


def scaled(url):
    for attempt in range(10):  # found: jitter-lost-at-cap
        try:
            return fetch(url)
        except ConnectionError:
            time.sleep(min(60, random.uniform(0, 2**attempt)))


@retry(stop=stop_after_attempt(10), wait=wait_exponential_jitter(max=30))  # found: jitter-lost-at-cap
def decorated(url): ...


@stamina.retry(on=ConnectionError, attempts=10)  # found: jitter-lost-at-cap
def waits_five_seconds_in_the_end(url): ...


lost = Retry(total=10, backoff_factor=1, backoff_max=30, backoff_jitter=1.0)  # found: jitter-lost-at-cap

# ── sound ────────────────────────────────────────────────────────────────────────────────────────────────────


def capped_first(url):
    for attempt in range(10):
        try:
            return fetch(url)
        except ConnectionError:
            time.sleep(min(60, 2**attempt) * random.random())


def decorrelated(url):
    delay = 1.0
    for attempt in range(10):
        try:
            return fetch(url)
        except ConnectionError:
            time.sleep(delay)
            delay = random.uniform(1, min(20, delay * 3))


@retry(stop=stop_after_attempt(4), wait=wait_exponential_jitter(max=60))
def never_reaches_its_cap(url): ...


@stamina.retry(on=ConnectionError, attempts=4)
def short(url): ...
