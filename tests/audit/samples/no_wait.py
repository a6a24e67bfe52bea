import random

import retrying
import tenacity
from tenacity import retry
from urllib3.util.retry import Retry


@retry  # found: no-wait
def bare(): ...


@tenacity.retry(stop=tenacity.stop_after_attempt(3))  # found: no-wait
def no_strategy(): ...


@retrying.retry(stop_max_attempt_number=3)  # found: no-wait
def milliseconds(): ...


at_once = Retry(total=3, status_forcelist=[502])  # found: no-wait


def loop(url):
    for attempt in range(3):  # found: no-wait
        try:
            return fetch(url)
        except ConnectionError:
            continue


# ── sound ────────────────────────────────────────────────────────────────────────────────────────────────────


@tenacity.retry(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_random_exponential())
def waits(): ...


@tenacity.retry(**settings)
def unknown(): ...


one_attempt = Retry(0)


def candidates(hosts):
    for host in hosts:
        try:
            return connect(host)
        except ConnectionError:
            continue


def port(sock, prefix):
    for _ in range(10):
        try:
            sock.bind(("", random.randint(prefix, 65535)))
            break
        except OSError:
            continue


def next_replica(replicas, attempts_left):
    replicas = iter(replicas)
    while attempts_left:
        replica = next(replicas)
        attempts_left -= 1
        try:
            return fetch(replica)
        except ConnectionError:
            continue


def person():
    while True:  # try again after an error
        name = Prompt.ask("Name")
        try:
            return fetch(name)
        except ConnectionError as retry:
            print("retry:", retry)


def waits_in_a_function(url, policy):
    attempt = 0
    while True:
        attempt += 1
        policy.back_off_if_needed()
        try:
            return fetch(url)
        except ConnectionError:
            continue


def one_more():
    attempt = 0
    while True:
        try:
            return fetch("http://browser")
        except Exception:
            if attempt:
                raise
            attempt += 1


def resumes(reader):
    attempts = 0
    while attempts < 5:
        attempts += 1
        try:
            return reader.read()
        except TimeoutError:
            if not reader.replace_source("read"):
                raise


def set_later():
    policy = Retry()
    policy.total = 3
    policy.backoff_factor = 0.8
    return policy


first_retry_is_always_at_once = Retry(total=1)


def waits_in_an_iterator(url, backoff):
    for attempt in backoff:
        try:
            return fetch(url)
        except ConnectionError:
            continue
