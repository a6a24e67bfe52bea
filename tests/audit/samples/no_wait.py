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
