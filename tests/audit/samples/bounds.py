import itertools
import random
import time

import backoff
import google.api_core.retry
import retry
import tenacity
from google.api_core import retry as google_retry


@tenacity.retry(stop=tenacity.stop_after_attempt(12), wait=tenacity.wait_random_exponential())  # found: no-cap
def hours(): ...


@backoff.on_exception(backoff.expo, ConnectionError)  # found: no-cap, unbounded-attempts
def for_ever(): ...


def doubling(url):
    for attempt in range(10):  # found: no-cap
        try:
            return fetch(url)
        except ConnectionError:
            time.sleep(2**attempt + random.random())


def endless(url):
    while True:  # found: unbounded-attempts
        try:
            return fetch(url)
        except ConnectionError:
            time.sleep(random.uniform(1, 2))


def counted(url):
    for attempt in itertools.count():  # found: unbounded-attempts
        try:
            return fetch(url)
        except ConnectionError:
            time.sleep(random.uniform(1, 2))


@retry.retry(ConnectionError, delay=1, jitter=(0, 1))  # found: unbounded-attempts
def without_tries(): ...


@google_retry.Retry(timeout=None)  # found: unbounded-attempts
def without_end(): ...


# ── sound ────────────────────────────────────────────────────────────────────────────────────────────────────


@tenacity.retry(stop=tenacity.stop_after_delay(30), wait=tenacity.wait_random_exponential())
def half_a_minute(): ...


@tenacity.retry(stop=tenacity.stop_after_attempt(5) | tenacity.stop_after_delay(60), wait=tenacity.wait_random_exponential())
def either(): ...


@backoff.on_exception(backoff.expo, ConnectionError, max_time=60)
def a_minute(): ...


@google.api_core.retry.Retry()
def two_minutes(): ...


def few(url):
    for attempt in range(4):
        try:
            return fetch(url)
        except ConnectionError:
            time.sleep(2**attempt + random.random())


def until_a_deadline(url, deadline):
    while True:
        try:
            return fetch(url)
        except ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(1, 2))


def gives_up(url):
    failures = 0
    while True:
        try:
            return fetch(url)
        except ConnectionError:
            failures += 1
            if failures > 5:
                raise
            time.sleep(random.uniform(1, 2))
