"""gRPC calls that a layer around abate repeats: its attempts are subtracted, and it is warned about once."""

import asyncio
import json
import warnings

import grpc
import pytest

import abate
import abate.clients.grpc as client
from tests.clients.grpc_server import CODES, UNAVAILABLE, WAYS, Service, failed, orders

PREVIOUS = "grpc-previous-rpc-attempts"


@pytest.fixture(autouse=True)
def _forget_warnings(monkeypatch):
    monkeypatch.setattr(client, "_warned", set())


def previous(service):
    return [seen.get(PREVIOUS) for seen in service.attempts]


@WAYS
@pytest.mark.parametrize(("said", "attempts"), [("1", 3), ("3", 1), ("9999", 1)])
def test_attempts_of_an_outer_layer_are_subtracted(way, said, attempts):
    """From `max_attempts`, but one attempt is left; the server sees how many came before in all."""
    with Service(*[UNAVAILABLE] * 5) as service, pytest.warns(abate.LayeredRetryWarning, match="orders retries gRPC"):
        _, report = failed(way.get, service.target, orders(max_attempts=4), metadata=((PREVIOUS, said),))
        assert (report.attempts, report.reason) == (attempts, "attempts")
        assert previous(service) == [str(int(said) + before) for before in range(attempts)]


@WAYS
def test_attempts_of_an_outer_layer_are_subtracted_for_streams(way):
    """Before their first message, as for unary calls."""
    with Service(*[UNAVAILABLE] * 5) as service, pytest.warns(abate.LayeredRetryWarning):
        _, report = failed(way.watch, service.target, orders(max_attempts=4), [], metadata=((PREVIOUS, "2"),))
        assert (report.attempts, previous(service)) == (2, ["2", "3"])


@WAYS
def test_bounds_by_kind_are_reduced_too(way):
    """With time as the only bound in all, they are what remains."""
    policy = orders(max_attempts=None, timeout=20.0, backoff=[0.01, 0.01, 0.01, 0.01], max_attempts_by_kind={"blip": 4})
    with Service(*[UNAVAILABLE] * 5) as service, pytest.warns(abate.LayeredRetryWarning):
        _, report = failed(way.get, service.target, policy, metadata=((PREVIOUS, "2"),))
        assert report.attempts == 2


@WAYS
@pytest.mark.parametrize("said", ["", "-1", "0", "1.5", "one", "9" * 5, "9" * 5000, "+2"])
def test_values_that_are_no_count_are_ignored(way, said):
    """Without a warning, and with all attempts."""
    with Service(*[UNAVAILABLE] * 3) as service, warnings.catch_warnings():
        warnings.simplefilter("error")
        _, report = failed(way.get, service.target, orders(), metadata=((PREVIOUS, said),))
        assert (report.attempts, previous(service)) == (3, [None, "1", "2"])


def test_each_policy_is_warned_about_once():
    """Not for every request."""
    with Service() as service, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            with grpc.insecure_channel(service.target, client.channel_options()) as channel:
                retried = grpc.intercept_channel(channel, *client.interceptors(orders()))
                retried.unary_unary("/shop.Orders/Get")(b"42", metadata=((PREVIOUS, "1"),))
    assert [each.category for each in caught] == [abate.LayeredRetryWarning]


class Outer(grpc.UnaryUnaryClientInterceptor):
    """Retries of another library: three attempts, counted in the metadata."""

    def intercept_unary_unary(self, continuation, details, request):
        for number in range(3):
            metadata = [*(details.metadata or ()), *([(PREVIOUS, str(number))] if number else [])]
            call = continuation(details._replace(metadata=metadata), request)
            if call.code() is not CODES.UNAVAILABLE:
                break
        return call


def test_an_outer_interceptor_that_counts_does_not_multiply():
    """Three attempts around three make six requests instead of nine."""
    with Service(*[UNAVAILABLE] * 9) as service, pytest.warns(abate.LayeredRetryWarning):
        with grpc.insecure_channel(service.target, client.channel_options()) as channel:
            retried = grpc.intercept_channel(channel, Outer(), *client.interceptors(orders()))
            error = failed(retried.unary_unary("/shop.Orders/Get"), b"42")[0]
        assert error.code() is CODES.UNAVAILABLE
        assert previous(service) == [None, "1", "2", "1", "2", "2"]


def test_the_retries_of_grpc_itself_multiply_unless_the_channel_turns_them_off():
    """Nothing shows them to interceptors: `channel_options` is the only remedy."""
    retry = {
        "maxAttempts": 2,
        "initialBackoff": "0.01s",
        "maxBackoff": "0.01s",
        "backoffMultiplier": 1,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    config = ("grpc.service_config", json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": retry}]}))

    def requests(options):
        with Service(*[UNAVAILABLE] * 6) as service, grpc.insecure_channel(service.target, options) as channel:
            failed(grpc.intercept_channel(channel, *client.interceptors(orders())).unary_unary("/shop.Orders/Get"), b"")
            return len(service.attempts)

    async def arequests(options):
        with Service(*[UNAVAILABLE] * 6) as service:
            retried = client.aio_interceptors(orders())
            async with grpc.aio.insecure_channel(service.target, options, interceptors=retried) as channel:
                with pytest.raises(grpc.RpcError):
                    await channel.unary_unary("/shop.Orders/Get")(b"")
            return len(service.attempts)

    assert requests([config]) == asyncio.run(arequests([config])) == 6
    own_off = [config, *client.channel_options()]
    assert requests(own_off) == asyncio.run(arequests(own_off)) == 3
