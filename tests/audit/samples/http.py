import random
import time
import urllib.request

import backoff
import httpx
import requests
from requests.adapters import HTTPAdapter
from requests.packages.urllib3.util.retry import Retry

posts = Retry(total=3, backoff_factor=1, allowed_methods=["GET", "POST"])  # found: non-idempotent-retry
any_method = Retry(total=3, backoff_factor=1, method_whitelist=False)  # found: non-idempotent-retry
hopeless = Retry(total=3, backoff_factor=1, status_forcelist=[401, 429, 503])  # found: client-error-retried
deaf = Retry(total=3, backoff_factor=1, status_forcelist=(429, 503), respect_retry_after_header=False)  # found: retry-after-ignored, no-jitter


def order(url, body):
    for attempt in range(3):
        try:
            return requests.post(url, json=body, timeout=5)  # found: non-idempotent-retry
        except requests.exceptions.RequestException:
            time.sleep(random.random())


@backoff.on_exception(backoff.expo, httpx.HTTPError, max_tries=3)  # found: client-error-retried
def any_status(client: httpx.Client, url):
    response = client.get(url)
    response.raise_for_status()


def any_status_by_hand(url):
    for attempt in range(3):
        try:
            response = requests.get(url, timeout=5)
            response.raise_for_status()
            return response
        except requests.RequestException:  # found: client-error-retried
            time.sleep(random.random())


def opened(url):
    for attempt in range(3):
        try:
            return urllib.request.urlopen(url, timeout=5)
        except urllib.error.URLError:  # found: client-error-retried
            time.sleep(random.random())


def rate_limited(url):
    for attempt in range(3):  # found: retry-after-ignored
        response = requests.get(url, timeout=5)
        if response.status_code != 429:
            return response
        time.sleep(random.random())


# ── sound ────────────────────────────────────────────────────────────────────────────────────────────────────

reads = Retry(total=3, backoff_factor=1, status_forcelist=[429, 500, 502, 503, 504])
adapter = HTTPAdapter(max_retries=reads)


def once_only(url, body, key):
    for attempt in range(3):
        try:
            return requests.post(url, json=body, headers={"Idempotency-Key": key}, timeout=5)
        except requests.exceptions.Timeout:
            time.sleep(random.random())


@backoff.on_exception(backoff.expo, httpx.HTTPError, max_tries=3, giveup=lambda error: error.response.status_code < 500)
def some_status(client: httpx.Client, url):
    client.get(url).raise_for_status()


def looks_at_it(url):
    for attempt in range(3):
        try:
            response = requests.get(url, timeout=5)
            response.raise_for_status()
            return response
        except requests.HTTPError as error:
            if error.response.status_code < 500:
                raise
            time.sleep(random.random())


def obeys(url):
    for attempt in range(3):
        response = requests.get(url, timeout=5)
        if response.status_code != 429:
            return response
        time.sleep(float(response.headers.get("Retry-After", 1)) + random.random())
