"""The requests of clients in events, in log lines and in `before_retry`, with a client made for the test."""

import asyncio
import types
import warnings

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate import Budget, LayeredRetryWarning, Policy, Ruling, Shelter, on_result
from abate.call import async_driver, sync_driver
from abate.call.client_request import ClientRequest
from abate.decide.outcome import Outcome
from abate.events import BudgetRefused, FirstFailure, GaveUp, Recovered, Retry
from abate.observe.event_text import facts, sentence
from abate.testing import VirtualClock

URL = "https://me:hunter2@api.example/orders?token=abc#top"
TARGET = "GET https://api.example/orders"


class Error(Exception):
    """An error of the client's library, with a response or without."""

    def __init__(self, status=None):
        super().__init__("failed")
        self.response = None if status is None else answer(status)


def answer(status):
    return types.SimpleNamespace(status=status)


def outcome_of(script):
    outcome = script.pop(0)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def overloaded(response):
    return Ruling.overload(hint=2.0) if response.status == 503 else None


class Client:
    """Sends one request by the driver, as the clients of HTTP libraries do."""

    def __init__(self, loop, script, **settings):
        self.loop = loop
        self.script = list(script)
        self.sent = []
        settings = {"on": (Error, on_result(overloaded)), "backoff": [0.25], "name": "orders", **settings}
        self.policy = Policy(**settings)

    def get(self, url=URL, method="GET"):
        request = types.SimpleNamespace(method=method, url=url, headers={})
        sent = ClientRequest(request, lambda it: (it.method, it.url), lambda response: response.status)

        def send():
            self.sent.append(dict(request.headers))
            return outcome_of(self.script)

        async def asend():
            return send()

        async def drive():
            return await async_driver.drive(self.policy, None, 0, asend, (), {}, make=sent.make)

        if self.loop == "threads":
            return sync_driver.drive(self.policy, None, 0, send, (), {}, make=sent.make)
        return trio.run(drive) if self.loop == "trio" else asyncio.run(drive())


@pytest.fixture(params=["threads", "asyncio", "trio"])
def client(request, virtual_clock):
    return lambda *script, **settings: Client(request.param, script, **settings)


@pytest.fixture
def virtual_clock():
    with VirtualClock() as clock:
        yield clock


def test_events_name_the_request_and_its_status(client, abate_events):
    """Each event has the method, the URL without secrets, and the status of its own attempt, if it has one."""
    last = Error(500)
    with pytest.raises(Error):
        client(answer(503), Error(), last).get()
    assert [(type(event), event.target, event.status) for event in abate_events] == [
        (FirstFailure, TARGET, 503),
        (Retry, TARGET, 503),
        (Retry, TARGET, None),
        (GaveUp, TARGET, 500),
    ]


def test_recoveries_and_refusals_name_the_request(client, abate_events):
    """A call that was retried with success, and one whose retry the budget did not admit."""
    client(answer(503), answer(200)).get()
    assert abate_events[-1] == Recovered("orders", 2, 2.25, TARGET)
    assert sentence(abate_events[-1]) == f"orders: succeeded on attempt 2 of {TARGET} after 2.25 s of waiting"
    abate_events.clear()
    client(answer(503), budget=Budget(ratio=0.0, reserve=0.0, name="none")).get()
    assert BudgetRefused("orders", "none", 1, TARGET) in abate_events
    assert f"orders: none refused attempt 2 of {TARGET}" in map(sentence, abate_events)


def test_lines_name_the_request_and_its_status(client, abate_events):
    """A failed result shows its status and no error; an error shows both."""
    with pytest.raises(Error):
        client(answer(503), Error(500), max_attempts=2).get()
    assert [sentence(event) for event in abate_events] == [
        f"orders: first failure of {TARGET} with 503 (overload)",
        f"orders: attempt 1 of {TARGET} failed with 503 (overload, asked for 2 s), next in 2.25 s",
        f"orders: gave up on {TARGET} with 500 after 2 attempts and 2.25 s of waiting (attempts): Error('failed')",
    ]


def test_a_result_that_was_given_up_on_shows_no_error(client, abate_events):
    """Nothing was raised, so the line ends with the reason."""
    assert client(answer(503), max_attempts=1).get().status == 503
    line = sentence(abate_events[-1])
    assert line == f"orders: gave up on {TARGET} with 503 after 1 attempt (attempts)"


def test_calls_without_a_request_have_neither_field(abate_events):
    """The facts of other calls have no empty fields."""
    with pytest.raises(OSError):
        Policy(on=OSError, max_attempts=2, backoff=[0.0], name="orders").call(outcome_of, [OSError(), OSError()])
    for event in abate_events:
        assert event.target is event.status is None
        assert not {"target", "status"} & facts(event).keys()
        assert "None" not in sentence(event)


def test_before_retry_sees_request_and_response(client):
    """It may change the headers of the next attempt, as after a 401; an error's response is there too."""
    seen = []

    def refresh(retry):
        seen.append((retry.response and retry.response.status, retry.attempt))
        retry.request.headers["Authorization"] = f"token {retry.attempt}"

    caller = client(answer(503), Error(500), Error(), answer(200), before_retry=refresh, max_attempts=4)
    assert caller.get().status == 200
    assert caller.sent == [{}, *({"Authorization": f"token {attempt}"} for attempt in (1, 2, 3))]
    assert seen == [(503, 1), (500, 2), (None, 3)]


def test_elsewhere_before_retry_sees_no_request():
    """A result is not taken for a response; the response of an error is."""
    seen = []
    policy = Policy(
        on=(Error, on_result(lambda result: result == "bad")),
        backoff=[0.0],
        before_retry=lambda retry: seen.append((retry.request, retry.response and retry.response.status)),
    )
    assert policy.call(outcome_of, ["bad", Error(429), "good"]) == "good"
    assert seen == [(None, None), (None, 429)]


def test_a_library_that_fails_to_tell_breaks_no_call(client, abate_events):
    """Target and status are None then."""

    def broken(thing):
        raise RuntimeError

    request = ClientRequest(object(), broken, broken)
    policy = Policy(on=on_result(overloaded), max_attempts=1, name="orders")
    result = sync_driver.drive(policy, None, 0, answer, (503,), {}, make=request.make)
    assert result.status == 503
    assert (abate_events[-1].target, abate_events[-1].status) == (None, None)


def test_an_error_whose_response_raises_has_no_status():
    """As some properties of httpx do."""

    class Unset(Exception):
        @property
        def response(self):
            raise RuntimeError("not set")

    request = ClientRequest(None, lambda _: ("GET", URL), lambda response: response.status)
    assert request.status(Unset()) is None
    assert request.status(Outcome(Unset())) is None


def test_the_target_is_read_at_the_first_event_only():
    """A call without events pays nothing for it, and one with many pays once."""
    asked = []

    def target(request):
        asked.append(request)
        return "GET", URL

    request = ClientRequest("request", target, lambda response: response.status)
    assert asked == []
    assert request.target() == request.target() == TARGET
    assert asked == ["request"]


SECRET = st.text(st.sampled_from("abcXYZ019-_.~!$&'()*+,;=:%\n "), min_size=1, max_size=12).map(
    lambda text: f"hush{text}"
)


@given(user=SECRET, password=SECRET, query=SECRET, fragment=SECRET, port=st.sampled_from(["", ":8443"]))
def test_user_info_and_query_never_appear(user, password, query, fragment, port):
    """Whatever characters they have."""
    url = f"https://{user}:{password}@api.example{port}/orders/42?q={query}&token={query}#{fragment}"
    target = ClientRequest(None, lambda _: ("POST", url), lambda _: 200).target()
    assert "hush" not in target
    assert "?" not in target
    assert target.isprintable()


@pytest.mark.parametrize(
    ("method", "url", "target"),
    [
        ("GET", "http://api.example", "GET http://api.example"),
        ("GET", "https://api.example/a?b", "GET https://api.example/a"),
        ("GET", "https://api.example/a#b", "GET https://api.example/a"),
        ("GET", "https://me@api.example/a", "GET https://api.example/a"),
        ("GET", "/relative?token=1", "GET /relative"),
        ("GET", "//me:pass/word@api.example/a", "GET //api.example/a"),
        ("GET", "https:/me:pass/word@api.example/a", "GET https:/api.example/a"),
        ("GET", "me:pass/word@[::1]:80", "GET [::1]:80"),
        ("GET", "https://[::1]:80/@shop/a", "GET https://[::1]:80/@shop/a"),
        ("DELETE\n", "https://api.example/", "DELETE\\n https://api.example/"),
        ("GET", "https://api.example/" + "x" * 1000, "GET https://api.example/" + "x" * 279 + "…"),
    ],
)
def test_targets(method, url, target):
    """One line, without what is secret, of bounded length."""
    assert ClientRequest(None, lambda _: (method, url), lambda _: 200).target() == target


@pytest.mark.parametrize(
    ("settings", "ruling", "reason"),
    [
        ({}, Ruling(False, "body"), "body"),
        ({"idempotent": True}, Ruling(False, "body", safe=False), "body"),
        ({"idempotent": False}, Ruling(False, "body"), "unsafe"),
        ({}, Ruling(False, "body", safe=False), "unsafe"),
        ({"idempotent": False}, Ruling(False, "body", reached=False), "body"),
        ({"max_attempts": 1}, Ruling(False, "body"), "body"),
    ],
)
def test_a_body_that_cannot_be_sent_again_is_a_reason(abate_events, settings, ruling, reason):
    """An outer layer may build it anew, unless the request itself must not be repeated."""
    with pytest.raises(OSError) as caught:
        Policy(on=lambda error: ruling, **settings).call(outcome_of, [OSError()])
    assert abate.report(caught.value).reason == reason
    assert abate_events[-1].reason == reason


@pytest.mark.parametrize(("safe", "calls"), [(None, 2), (False, 1)])
def test_an_outer_policy_may_build_the_body_anew(safe, calls):
    """A function that sends a generator is called again, as its inner policy sent it once; not if that is unsafe."""
    made = []
    inner = Policy(name="upload", on=lambda error: Ruling(False, "body", safe=safe))

    def upload():
        made.append("body")
        inner.call(outcome_of, [OSError()])

    with pytest.raises(OSError), warnings.catch_warnings():
        warnings.simplefilter("ignore", LayeredRetryWarning)
        Policy(name="uploads", on=OSError, max_attempts=2, backoff=[0.0]).call(upload)
    assert len(made) == calls


@pytest.mark.parametrize(("answered", "accepted"), [(False, False), (True, True)])
def test_gates_hear_of_a_failure_that_has_no_second_body(scripted_gate, answered, accepted):
    """The request failed, although it can't be repeated; a status is the server's answer."""
    gate, told = scripted_gate(), []
    gate.failed = told.append
    with pytest.raises(OSError):
        Policy(on=lambda error: Ruling(False, "body", answered=answered), gate=gate).call(outcome_of, [OSError()])
    assert told == [accepted]
    assert gate.left == []


def test_a_shelter_hears_of_a_failure_that_has_no_second_body():
    """Uploads that fail during an outage are no good answers."""
    with VirtualClock():
        shelter = Shelter(name="shop")
        policy = Policy(on=lambda error: Ruling(False, "body"), shelter=shelter)
        for _ in range(20):
            with pytest.raises(Exception):  # noqa: B017  (refused, once it is closed)
                policy.call(outcome_of, [OSError()])
        assert not shelter.dispatcher().calm


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("//me:hunter2@api.example/orders", "//api.example/orders"),
        ("https:/me:hunter2@api.example/orders", "https:/api.example/orders"),
        ("https:///me:hunter2@api.example/orders", "https:///api.example/orders"),
        ("/orders/me@example", "/orders/me@example"),
    ],
)
def test_an_invalid_url_shows_no_secrets_either(url, shown):
    """The error of a URL that lacks its scheme is reported like any other."""
    assert ClientRequest(None, lambda _: ("GET", url), lambda _: None).target() == f"GET {shown}"
