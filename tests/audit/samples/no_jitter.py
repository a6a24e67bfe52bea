import asyncio
import random
import time

import backoff
import requests
import retrying
import tenacity
from tenacity import retry, stop_after_attempt, wait_exponential, wait_random, wait_random_exponential
from urllib3 import Retry


def doubling(url):
    for attempt in range(5):  # found: no-jitter
        try:
            return fetch(url)
        except ConnectionError:
            time.sleep(2**attempt)


def fixed(url):
    retries = 3
    while retries > 0:  # found: no-jitter
        try:
            return fetch(url)
        except OSError:
            retries -= 1
            time.sleep(5)


async def growing(url):
    delay = 0.5
    while True:  # found: no-jitter
        try:
            return await fetch(url)
        except ConnectionError:
            await asyncio.sleep(delay)
            delay = min(delay * 2, 30)


def by_status(session, url):
    for attempt in range(4):  # found: no-jitter
        response = session.get(url)
        if response.status_code == 200:
            return response
        time.sleep(1 << attempt)


class Client:
    backoff = 0.1

    def send(self, message):
        for attempt in range(8):  # found: no-jitter
            try:
                return self.connection.send(message)
            except ConnectionError:
                time.sleep(self.delay(attempt))

    def delay(self, attempt):
        return min(60.0, self.backoff * 2**attempt)


@retry(stop=stop_after_attempt(5), wait=wait_exponential(multiplier=1, max=30))  # found: no-jitter
def decorated(url): ...


@backoff.on_exception(backoff.expo, ConnectionError, max_tries=5, max_value=30, jitter=None)  # found: no-jitter
def without_jitter(url): ...


@retrying.retry(wait_exponential_multiplier=100, wait_exponential_max=10_000, stop_max_attempt_number=5)  # found: no-jitter
def milliseconds(url): ...


adapter = requests.adapters.HTTPAdapter(max_retries=Retry(total=5, backoff_factor=0.5))  # respects Retry-After


def listed_delays(url):
    for seconds in (1, 2, 4, 8):  # found: no-jitter waits 1
        try:
            return fetch(url)
        except ConnectionError:
            time.sleep(seconds)


def doubles_to_a_limit(url):
    delay = 0.5
    for attempt in range(4):  # found: no-jitter waits 0.5
        try:
            return fetch(url)
        except ConnectionError:
            time.sleep(delay)
            delay = min(delay * 2, 30)


def throttled(client):
    for attempt in range(4):  # found: no-jitter
        try:
            return client.put()
        except ClientError as error:
            if "Throttling" not in str(error):
                raise
            time.sleep(1)


# ── sound ────────────────────────────────────────────────────────────────────────────────────────────────────


def full_jitter(url):
    for attempt in range(5):
        try:
            return fetch(url)
        except ConnectionError:
            time.sleep(random.uniform(0, min(30, 2**attempt)))


def added(url):
    delay = 1.0
    for attempt in range(5):
        try:
            return fetch(url)
        except ConnectionError:
            time.sleep(delay + random.random())
            delay *= 2


def by_helper(url):
    for attempt in range(5):
        try:
            return fetch(url)
        except ConnectionError:
            time.sleep(with_jitter(attempt))


def with_jitter(attempt):
    return random.random() * 2**attempt


@retry(stop=stop_after_attempt(5), wait=wait_random_exponential(max=30))
def spread(url): ...


@retry(stop=stop_after_attempt(5), wait=wait_exponential(max=30) + wait_random(0, 2))
def summed(url): ...


@tenacity.retry(stop=tenacity.stop_after_attempt(5), wait=compute_wait)
def unknown(url): ...


@backoff.on_exception(backoff.expo, ConnectionError, max_tries=5, max_value=30)
def by_default(url): ...


def poll(job):
    while not job.done():
        time.sleep(5)


def consume(queue):
    while True:
        try:
            handle(queue.get())
        except ConnectionError:
            time.sleep(5)


def items(paths):
    for path in paths:
        try:
            upload(path)
        except ConnectionError:
            time.sleep(1)


def asks_the_user():
    while True:
        try:
            return int(input())
        except ValueError:
            time.sleep(1)


def pages(client):
    for number in range(10):
        try:
            return client.get_page(number)
        except ConnectionError:
            time.sleep(1)


def hinted(session, url):
    for attempt in range(5):
        response = session.get(url)
        if response.status_code == 200:
            return response
        time.sleep(int(response.headers["Retry-After"]))


def until_started(url, timeout):
    start = time.time()
    while time.time() - start < timeout:
        try:
            return fetch(url)
        except ConnectionError:
            time.sleep(0.1)


def until_transcoded(client):
    for attempt in range(50):
        try:
            return client.configure()
        except Exception as error:
            if "Transcode not finished yet" in str(error):
                time.sleep(10)
                continue
            raise


def until_unlocked(call):
    while True:
        try:
            return call()
        except OperationalError as error:
            if "locked" not in str(error):
                raise
        time.sleep(0.05)


def until_mounted(host):
    started = time.time()
    while True:
        if time.time() - started > 60:
            raise TimeoutError(host)
        try:
            return connect(host)
        except ConnectionError:
            time.sleep(10)


def until_lock_is_free(lock):
    while True:
        try:
            return lock.acquire()
        except LockTimeout:
            time.sleep(0.1)


def wait_for_browser(url):
    for attempt in range(20):
        try:
            return fetch(url)
        except ConnectionError:
            time.sleep(0.5)
