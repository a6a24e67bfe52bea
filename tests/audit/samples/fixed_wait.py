import backoff
import celery
import retry as retry_package
import retrying
from tenacity import retry, stop_after_attempt, wait_fixed, wait_random


@retry(stop=stop_after_attempt(5), wait=wait_fixed(2))  # found: fixed-wait
def tenacity_waits(): ...


@backoff.on_exception(backoff.constant, ConnectionError, interval=3, jitter=None, max_tries=4)  # found: fixed-wait
def backoff_waits(): ...


@retrying.retry(wait_fixed=2000, stop_max_attempt_number=3)  # found: fixed-wait
def retrying_waits(): ...


@retry_package.retry(ConnectionError, tries=3, delay=2)  # found: fixed-wait
def retry_waits(): ...


@celery.shared_task(bind=True, autoretry_for=(ConnectionError,))  # found: fixed-wait
def task(self): ...


# ── sound ────────────────────────────────────────────────────────────────────────────────────────────────────


@retry(stop=stop_after_attempt(5), wait=wait_fixed(2) + wait_random(0, 2))
def tenacity_spreads(): ...


@backoff.on_exception(backoff.constant, ConnectionError, interval=3, max_tries=4)
def backoff_spreads(): ...


@celery.shared_task(bind=True, autoretry_for=(ConnectionError,), retry_backoff=True)
def spread_task(self): ...


@retry(stop=stop_after_attempt(9), wait=wait_fixed(1))
def wait_until_started(): ...
