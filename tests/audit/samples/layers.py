import json
import random
import time

import boto3
import requests
import tenacity
from celery import shared_task
from openai import OpenAI
from pymongo import MongoClient
from requests.adapters import HTTPAdapter
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError
from urllib3 import Retry

client = OpenAI(max_retries=2, timeout=30)
alone = OpenAI(max_retries=0, timeout=30)


@retry(stop=stop_after_attempt(3), wait=wait_random(1, 2))  # found: layers 3 x 5 x 3 = 45
def answer(question):
    return ask(question)


def ask(question):
    for attempt in range(5):
        try:
            return client.chat.completions.create(question)
        except Exception:
            time.sleep(random.random())


def session():
    made = requests.Session()
    made.mount("https://", HTTPAdapter(max_retries=Retry(total=3, backoff_factor=1)))
    return made


class Api:
    def __init__(self):
        self.session = session()

    @retry(stop=stop_after_attempt(4), wait=wait_random(1, 2))  # found: layers 4 x 4 = 16
    def get(self, url):
        return self.session.get(url, timeout=5)


@shared_task(bind=True, autoretry_for=(Exception,), retry_backoff=True, max_retries=2)  # found: layers 3 x 3 = 9
def upload(self, body):
    boto3.client("s3").put_object(Body=body)


@retry(stop=stop_after_attempt(2), wait=wait_random(1, 2))  # found: layers 2 x 3 = 6
@retry(stop=stop_after_attempt(3), wait=wait_random(1, 2))
def twice(url): ...


def block(question):
    for attempt in tenacity.Retrying(stop=stop_after_attempt(2), wait=wait_random(1, 2)):  # found: layers 2 x 3 = 6
        with attempt:
            client.responses.create(question)


# ── sound ────────────────────────────────────────────────────────────────────────────────────────────────────


@retry(stop=stop_after_attempt(3), wait=wait_random(1, 2))
def one_layer(question):
    return alone.chat.completions.create(question)


@retry(stop=stop_after_attempt(3), wait=wait_random(1, 2), retry=retry_if_exception_type(json.JSONDecodeError))
def other_errors(question):
    return json.loads(ask(question))


def side_by_side(question):
    ask(question)
    answer(question)


def conditional(key):
    for attempt in range(5):
        try:
            return boto3.client("dynamodb").put_item(Item=key)
        except Exception as error:
            if error.code != "ConditionalCheckFailedException":
                raise
            time.sleep(random.uniform(0, 1))


def until_ready(deadline):
    while time.monotonic() < deadline:
        try:
            return client.models.list()
        except ConnectionError:
            time.sleep(1)


def until_it_runs(deployment, deadline):
    while time.monotonic() < deadline:
        status = deployment.refresh()
        client.models.list()
        if status.status in ["failed", "terminated"]:
            return status
        time.sleep(1)


def ping(url):
    for attempt in range(3):
        try:
            return MongoClient(url).admin.command("ping")
        except ConnectionError:
            time.sleep(random.uniform(0, 1))


@retry(stop=stop_after_attempt(3), wait=wait_random(1, 2), retry=retry_if_exception_type(SlackApiError))
def answers_of_slack(text):
    return WebClient(token="x").chat_postMessage(text=text)


def partition_is_gone():
    for attempt in range(3):
        try:
            return client.models.list()
        except Exception as error:
            if not is_gone(error):
                raise
            time.sleep(random.uniform(0, 1))
