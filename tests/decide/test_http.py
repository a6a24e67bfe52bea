"""HTTP: the table of statuses, hints in headers, and what can be read off the errors of any library."""

import http.client
import io
import types
import urllib.error
import warnings
from email.utils import formatdate
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate.decide import Outcome, Ruling
from abate.decide.http import header, judge, repeatable, status, transient, transient_result
from abate.decide.outcome import FATAL
from abate.decide.rules import build_rules
from abate.schedule.hints import MAX_HINT
from abate.testing import Script, VirtualClock

# the whole table, written down by hand; whatever is not in it is fatal from 400 on, and nothing to retry below
RETRIED = {
    **{code: "blip" for code in range(500, 600) if code not in (501, 505)},
    425: "blip",
    408: "overload",
    429: "overload",
    503: "overload",
    504: "overload",
    529: "overload",
}


def message(**headers):
    made = http.client.HTTPMessage()
    for name, value in headers.items():
        made[name.replace("_", "-")] = value
    return made


# -- the table


def test_the_table_of_every_status():
    """Every status from 100 to 599 has the ruling that is written down, 501 and 505 being fatal."""
    expected = {
        code: None
        if code < 400
        else Ruling(True, RETRIED[code], reached=code not in (429, 529), answered=code not in (408, 504))
        if code in RETRIED
        else FATAL
        for code in range(100, 600)
    }
    assert {code: judge(code) for code in range(100, 600)} == expected


@pytest.mark.parametrize("code", [600, 999, 10**9])
def test_a_status_beyond_the_table_is_fatal(code):
    """Whatever it means, it does not mean: come back."""
    assert judge(code) == FATAL


def test_an_enum_is_a_status():
    """`http.HTTPStatus` is as good as a number."""
    assert judge(HTTPStatus.SERVICE_UNAVAILABLE) == Ruling.overload(answered=True)


@pytest.mark.parametrize("safe", [True, False, None])
def test_the_ruling_carries_whether_the_request_is_safe(safe):
    """Known or not, it is passed on."""
    assert judge(503, safe=safe).safe is safe


# -- headers


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "7"},
        {"retry-after": "7"},
        {"RETRY-AFTER": " 7 "},
        {"X-Other": "1", "rEtRy-aFtEr": "7"},
        {"Retry-After": 7},
        message(retry_after="7"),
        message(RETRY_AFTER="7"),
    ],
    ids=lambda headers: f"{type(headers).__name__}-{dict(headers)}",
)
def test_the_hint_is_found_whatever_the_case(headers):
    """In a plain dict, and in the message of http.client, which is no mapping."""
    assert judge(503, headers).hint == 7.0
    assert judge(500, headers) == Ruling(True, "blip", 7.0, answered=True)


@pytest.mark.parametrize("headers", [None, {}, {"Retry-After": "soon"}, {"Retry-After": ""}, {"Retry": "7"}, message()])
def test_without_a_readable_header_there_is_no_hint(headers):
    """The own backoff counts."""
    assert judge(503, headers) == Ruling.overload(answered=True)


def test_a_date_is_measured_against_the_response_itself():
    """With a Date header the server's clock counts, without one the clock here."""
    headers = {"retry-after": formatdate(1_000_030, usegmt=True)}
    with VirtualClock(start=1_000_010.0):
        assert judge(503, headers).hint == 20.0
        assert judge(503, {**headers, "date": formatdate(1_000_025, usegmt=True)}).hint == 5.0


HINTS = st.sampled_from(
    [
        *("Retry-After", "retry-after-ms", "x-should-retry", "x-amz-retry-after", "Date", "RateLimit"),
        *("x-ratelimit-reset-tokens", "x-ratelimit-remaining-tokens", "anthropic-ratelimit-tokens-reset"),
    ]
)
VALUES = st.text() | st.binary() | st.integers() | st.floats() | st.none()
FIELDS = st.sampled_from(["error", "code", "type", "details", "@type", "retryDelay"])
JSON = st.recursive(
    st.none() | st.text() | st.floats() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(FIELDS, inner)
)


@given(
    st.dictionaries(st.text() | HINTS | st.binary(), VALUES),
    st.sampled_from([*RETRIED, 200, 404]),
    st.binary() | st.text() | JSON,
)
def test_no_header_and_no_body_is_an_error(headers, code, body):
    """Servers send anything: there is a ruling for it, and a hint within reason or none."""
    ruling = judge(code, headers, body=body)
    assert (ruling is None) == (code < 400)
    assert ruling is None or ruling.hint is None or 0.0 <= ruling.hint <= MAX_HINT


@pytest.mark.parametrize(
    ("code", "told", "ruling"),
    [
        (409, "true", Ruling.blip(answered=True)),
        (409, None, FATAL),
        (409, "1", FATAL),
        (400, " TRUE ", Ruling.blip(answered=True)),
        (501, "true", Ruling.blip(answered=True)),
        (503, "false", FATAL),
        (429, "False", FATAL),
        (503, "maybe", Ruling.overload(answered=True)),
        (200, "true", None),
    ],
)
def test_the_server_may_decide_whether_to_retry(code, told, ruling):
    """`x-should-retry` wins over the table, for error responses."""
    assert judge(code, {} if told is None else {"X-Should-Retry": told}) == ruling


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"code": "insufficient_quota"}},
        {"error": {"type": "insufficient_quota", "code": None}},
        {"code": "insufficient_quota", "message": "as the SDK of OpenAI gives it"},
        b'{"error": {"code": "insufficient_quota"}}',
        '{"error": {"message": "You exceeded your current quota", "type": "insufficient_quota"}}',
    ],
    ids=repr,
)
def test_a_quota_that_is_used_up_is_fatal(body):
    """With 429 only; another attempt would be refused as well, whatever the headers say."""
    assert judge(429, {"retry-after": "1", "x-should-retry": "true"}, body=body) == FATAL
    assert judge(503, body=body) == Ruling.overload(answered=True)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"\xff\xfe", "{", "[" * 60_000, "9" * 60_000, b'{"error": 1}', 5, ["insufficient_quota"]),
        b" " * 70_000 + b'{"error": {"code": "insufficient_quota"}}',
    ],
    ids=lambda body: repr(body)[:30],
)
def test_a_body_that_cannot_be_read_says_nothing(body):
    """Nor does one that is too long to be read."""
    assert judge(429, body=body) == Ruling.overload(reached=False, answered=True)


@pytest.mark.parametrize(
    ("code", "headers", "refused"),
    [
        (429, {}, True),
        (529, {}, True),
        (503, {"Retry-After": "1"}, True),
        (503, {"retry-after-ms": "10"}, True),
        (503, {"Retry-After": "NaN"}, False),
        (503, {}, False),
        (500, {"Retry-After": "1"}, False),
        (502, {}, False),
        (504, {"Retry-After": "1"}, False),
    ],
)
@pytest.mark.parametrize("idempotent", [None, False])
def test_a_post_is_repeated_if_the_server_refused_it_before_taking_it(code, headers, refused, idempotent):
    """The call of a POST is retried then, also if it is declared not idempotent; else it is unsafe."""
    error = Carrier(response=like(status_code=code, headers=headers), request=like(method="POST"))
    policy = abate.Policy(on=transient, backoff=[0.0], idempotent=idempotent)
    with VirtualClock():
        if refused:
            assert policy.call(Script(error, "sent")) == "sent"
        else:
            with pytest.raises(Carrier):
                policy.call(Script(error, "sent"))
            assert abate.report(error).reason == "unsafe"


def test_a_shelter_hears_that_the_server_is_overloaded_when_it_refuses_a_request():
    """A refusal makes the request safe to repeat, and is an overload that the server itself answered."""
    ruling = judge(429)
    assert (ruling.overloaded, ruling.answered, ruling.taken) == (True, True, False)
    with VirtualClock():
        shelter = abate.Shelter(patience=0.1)
        with pytest.raises(Carrier):
            abate.Policy(on=transient, shelter=shelter, backoff=[0.0]).call(Script(*[Carrier(status_code=429)] * 3))
        assert shelter.state == "probing"


def test_a_header_is_text_or_missing():
    """A value is given as text, whatever it was."""
    assert header({"Retry-After": 7}, "retry-after") == "7"
    assert header({"retry-after": None}, "Retry-After") is None
    assert header(None, "Retry-After") is None
    assert header({1: "2"}, "Retry-After") is None


@pytest.mark.parametrize(
    ("method", "headers", "safe"),
    [
        ("GET", None, True),
        ("get", None, True),
        ("HEAD", {}, True),
        ("OPTIONS", None, True),
        ("TRACE", None, True),
        ("POST", None, False),
        ("PUT", None, True),
        ("delete", None, True),
        ("PATCH", None, False),
        ("QUERY", None, False),
        ("POST", {"Idempotency-Key": "8e03978e"}, True),
        ("post", {"idempotency-key": "8e03978e"}, True),
        ("POST", message(idempotency_key="8e03978e"), True),
        ("POST", {"Idempotency-Key": ""}, False),
        ("POST", {"Idempotency-Key": " "}, False),
        ("POST", {"X-Idempotency": "8e03978e"}, False),
    ],
)
def test_which_requests_may_be_repeated(method, headers, safe):
    """Those with an idempotent method, and those that carry a key."""
    assert repeatable(method, headers) is safe


# -- errors of many libraries


class Carrier(Exception):
    """An error with whatever attributes a library gives it."""

    def __init__(self, **attributes):
        super().__init__()
        self.__dict__.update(attributes)


def like(**attributes):
    return types.SimpleNamespace(**attributes)


class Unset:
    """httpx's responses and errors raise where their request was never set."""

    @property
    def request(self):
        raise RuntimeError("The .request property has not been set.")


class HttpxResponse(Unset):
    def __init__(self, code, **headers):
        self.status_code, self.headers = code, headers


class RequestsResponse:
    """False where the status is an error, as in requests."""

    def __init__(self, code, request=None, **headers):
        self.status_code, self.headers, self.request = code, headers, request

    def __bool__(self):
        return self.status_code < 400


class AiohttpError(Exception):
    """Has a status, and warns when its `code` is read."""

    def __init__(self, code, method, **headers):
        super().__init__()
        self.status, self.headers, self.request_info = code, headers, like(method=method, headers={})

    @property
    def code(self):
        warnings.warn("code property is deprecated, use status instead", DeprecationWarning, stacklevel=2)
        return self.status


def urllib_error(code, **headers):
    return urllib.error.HTTPError("http://shop.example/", code, "no", message(**headers), io.BytesIO(b"busy"))


def httpx_error(code, method):
    request = like(method=method, headers={})
    return Carrier(request=request, response=like(status_code=code, headers={"retry-after": "3"}, request=request))


def requests_error(code, method):
    request = like(method=method, headers={})
    return Carrier(request=None, response=RequestsResponse(code, request, **{"Retry-After": "3"}))


def aiohttp_error(code, method):
    return AiohttpError(code, method, **{"Retry-After": "3"})


@pytest.mark.parametrize("make", [httpx_error, requests_error, aiohttp_error])
@pytest.mark.parametrize(("method", "safe"), [("GET", True), ("POST", False)])
def test_errors_of_the_http_libraries_are_read(make, method, safe):
    """Status, hint and method, wherever the library keeps them."""
    assert transient.judge(Outcome(make(503, method))) == Ruling(True, "overload", 3.0, False, safe, True)
    assert transient.judge(Outcome(make(500, method))) == Ruling(True, "blip", 3.0, True, safe, True)
    assert transient.judge(Outcome(make(404, method))) == FATAL
    assert transient.judge(Outcome(make(302, method))) is None


def test_an_error_of_urllib_is_read():
    """The real one, with its own kind of headers; it does not show its request."""
    with urllib_error(429, retry_after="4") as error:
        assert transient.judge(Outcome(error)) == Ruling(True, "overload", 4.0, False, None, True)
    with urllib_error(501, retry_after="4") as error:
        assert transient.judge(Outcome(error)) == FATAL


@pytest.mark.parametrize(
    ("error", "ruling"),
    [
        (Carrier(status_code=502), Ruling.blip(answered=True)),
        (Carrier(status=503, headers=None), Ruling.overload(answered=True)),
        (Carrier(code=HTTPStatus.TOO_MANY_REQUESTS), Ruling.overload(reached=False, answered=True)),
        (Carrier(code=503, headers="Retry-After: 3"), Ruling.overload(answered=True)),
        (Carrier(code=503, headers=like(get={}.get)), Ruling.overload(answered=True)),
        (Carrier(status_code=503, status=404), Ruling.overload(answered=True)),
        (Carrier(status_code=200, status=503), None),
        (Carrier(status_code=None, status=503), Ruling.overload(answered=True)),
        (Carrier(status="503"), None),
        (Carrier(status=True, code=503), Ruling.overload(answered=True)),
        (Carrier(code=lambda: 503), None),
        (Carrier(code=399), None),
        (Carrier(code=599), Ruling.blip(answered=True)),
        (Carrier(code=505), FATAL),
        (Carrier(code=600), None),
        (Carrier(response=like(), status_code=503), None),
        (Carrier(response={"status": 503}), None),
        (
            Carrier(code=503, request=like(method=None), request_info=like(method="GET")),
            Ruling(True, "overload", safe=True, answered=True),
        ),
        (
            Carrier(code=503, request=like(method="POST", headers={"idempotency-key": "1"})),
            Ruling(True, "overload", safe=True, answered=True),
        ),
        (
            Carrier(code=503, request=like(method="POST", headers=None)),
            Ruling(True, "overload", safe=False, answered=True),
        ),
        (KeyError("503"), None),
    ],
)
def test_errors_of_ones_own_are_read(error, ruling):
    """The first number under status_code, status or code is the status; other values are ignored."""
    assert transient.judge(Outcome(error)) == ruling


def test_an_attribute_that_cannot_be_read_is_left_out():
    """A property that raises tells nothing; the error of the call is what counts."""
    assert transient.judge(Outcome(result=HttpxResponse(503))) == Ruling.overload(answered=True)
    unset = type("Unsent", (Unset, Exception), {"response": HttpxResponse(503, **{"retry-after": "3"})})()
    assert transient.judge(Outcome(unset)) == Ruling.overload(3.0, reached=False, answered=True)


def test_responses_that_are_returned_are_read_as_errors_are():
    """Except that one which is not worth another attempt is a result like any other."""
    assert transient.judge(Outcome(result=HttpxResponse(429, **{"retry-after": "9"}))) == Ruling.overload(
        9.0, reached=False, answered=True
    )
    assert transient.judge(Outcome(result=RequestsResponse(500))) == Ruling.blip(answered=True)
    assert transient.judge(Outcome(result=HttpxResponse(404))) is None
    assert transient.judge(Outcome(result=HttpxResponse(200))) is None
    assert transient.judge(Outcome(result="fine")) is None
    assert transient.judge(Outcome(Carrier(code=503), result=HttpxResponse(404))) == Ruling.overload(answered=True)
    assert transient_result is transient


# -- statuses of the user's choice


@pytest.mark.parametrize(
    ("code", "ruling"),
    [
        (404, Ruling(True, "blip", 6.0, True, False, True)),
        (501, Ruling(True, "blip", 6.0, True, False, True)),
        (503, Ruling(True, "overload", 6.0, False, False, True)),
        (500, None),
        (200, None),
    ],
)
def test_chosen_statuses_are_retried_whatever_the_table_says(code, ruling):
    """With the nature that the table gives them, their hint, and whether the request is safe."""
    error = Carrier(response=like(status_code=code, headers={"Retry-After": "6"}), request=like(method="POST"))
    assert status(404, 501, 503).judge(Outcome(error)) == ruling


def test_chosen_statuses_touch_nothing_else():
    """Only errors and responses that carry one of them."""
    rule = status(404)
    assert rule.judge(Outcome(result=HttpxResponse(404))).retry
    assert rule.judge(Outcome(result=HttpxResponse(503))) is None
    assert rule.judge(Outcome(KeyError(404))) is None


def test_rules_on_statuses_stand_in_a_list():
    """The first that answers decides: what comes before the table overrules it."""
    both = build_rules((status(404), transient), unless=status(503))
    assert [both.decide(Outcome(Carrier(code=code))).retry for code in (404, 410, 500, 503)] == [
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("code", [399, 600, 0, -1, True, "404", 404.0, None, (404, 503)])
def test_a_bad_status_is_refused(code):
    """A code from 400 to 599, and nothing else."""
    with pytest.raises(ValueError, match=r"^status must be a code from 400 to 599, not ") as caught:
        status(503, code)
    assert str(caught.value).endswith(repr(code))


def test_no_status_is_refused():
    """A rule that retries nothing would be silent about it."""
    with pytest.raises(TypeError, match=r"^status needs the codes to retry, as in abate\.http\.status\(404, 423\)$"):
        status()


@pytest.mark.parametrize("code", [400, 599])
def test_the_edges_are_statuses(code):
    """Both ends of the range can be chosen."""
    assert status(code).judge(Outcome(Carrier(code=code))).retry


def test_a_status_that_another_layer_has_given_up_on_is_not_retried_again():
    """Also where the rule is about that status alone."""
    rules = build_rules(status(503))

    error = Exception()
    error.status_code, error.headers = 503, {"Abate-Exhausted": "1"}
    assert not rules.judge(Outcome(error)).retry
    error.headers = {}
    assert rules.judge(Outcome(error)).retry


def test_a_network_error_with_a_response_that_has_no_status_is_judged_as_a_network_error():
    """Some libraries set `response` on each error, without one."""
    error = ConnectionError("reset")
    error.response = object()
    assert judged(error).retry


def judged(error):
    return build_rules(transient).judge(Outcome(error))
