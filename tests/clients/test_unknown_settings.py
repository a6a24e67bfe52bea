"""A setting that a client does not have: its error names the one that was probably meant."""

import re
from inspect import signature

import httpx
import pytest

import abate
from abate.clients import (
    aiohttp,
    anthropic,
    asgi,
    grpc,
    grpc_server,
    httpx2,
    openai,
    redis,
    requests,
    sqs,
    urllib3,
    wsgi,
)
from abate.clients import httpx as httpx_client
from abate.errors import OF_POLICIES

POLICY = abate.Policy(name="orders", on=abate.http.transient)
URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
HTTP = [
    httpx_client.Transport,
    httpx_client.AsyncTransport,
    httpx2.Transport,
    requests.Adapter,
    urllib3.PoolManager,
    aiohttp.middleware,
]


async def app(scope, receive, send):
    raise AssertionError("nothing calls it")


@pytest.mark.parametrize("make", HTTP)
@pytest.mark.parametrize(
    ("setting", "meant"), [("idempotncy_key", "idempotency_key"), ("secret", "secrets"), ("mesh_retry", "mesh_retries")]
)
def test_http_clients_name_the_setting_that_was_meant(make, setting, meant):
    with pytest.raises(TypeError, match=f"has no setting '{setting}': did you mean '{meant}'"):
        make(POLICY, **{setting: True})


@pytest.mark.parametrize(
    "make", [*HTTP, grpc.interceptors, grpc.aio_interceptors, openai.client, anthropic.async_client]
)
def test_settings_of_a_policy_are_sent_there(make):
    with pytest.raises(TypeError, match=re.escape("write policy=abate.Policy(max_attempts=...)")):
        make(max_attempts=3)


@pytest.mark.parametrize(
    ("make", "setting", "meant"),
    [
        (lambda **given: requests.Adapter(POLICY, pool_block=True, **given), "pool_maxsze", "pool_maxsize"),
        (lambda **given: urllib3.PoolManager(POLICY, maxsize=3, **given), "timeot", "timeout"),
        (lambda **given: asgi.Middleware(app, **given), "permit", "permits"),
        (lambda **given: wsgi.Middleware(app, **given), "trust", "trusted"),
        (lambda **given: grpc.interceptors(POLICY, **given), "secrt", "secret"),
        (grpc_server.interceptors, "trust", "trusted"),
        (grpc_server.aio_interceptors, "trust", "trusted"),
        (lambda **given: sqs.Queue(URL, **given), "dead_letter", "dead_letters"),
        (openai.client, "api_keys", "api_key"),
        (anthropic.async_client, "polcy", "policy"),
    ],
)
def test_the_setting_that_was_meant(make, setting, meant):
    with pytest.raises(TypeError, match=f"has no setting '{setting}': did you mean '{meant}'"):
        make(**{setting: 1})


def test_clients_of_redis_take_no_policy():
    with pytest.raises(TypeError, match=re.escape("policy.call(client.get, key)")):
        redis.client("redis://127.0.0.1:1", policy=POLICY)


def test_the_settings_of_policies_exist():
    assert signature(abate.Policy).parameters.keys() >= OF_POLICIES


def test_warnings_name_the_line_of_the_caller():
    with pytest.warns(abate.LayeredRetryWarning) as told:
        httpx_client.Transport(POLICY, httpx.HTTPTransport(retries=2))
        requests.Adapter(POLICY, max_retries=2)
        urllib3.PoolManager(POLICY, retries=2)
    assert {warning.filename for warning in told} == {__file__}
