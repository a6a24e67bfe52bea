"""Hints in the headers and bodies of HTTP responses: which counts, and what is no hint."""

from datetime import UTC, datetime, timedelta, timezone
from email.utils import formatdate

import pytest
import urllib3
from hypothesis import example, given
from hypothesis import strategies as st

from abate.schedule.header_hints import MAX_BODY, error_body, http_hint
from abate.schedule.hints import MAX_HINT
from abate.testing import VirtualClock

NOW = 1_700_000_000.0
HOSTILE = [
    *("", " ", "soon", "-1", "-1s", "0x10", "1e3", "NaN", "nan", "inf", "-inf", "Infinity", "1_000", "+5", "1,5"),
    *(
        str(10**18),
        "9" * 400,
        "9" * 65_536,
        "1" * 50 + "s",
        "9" * 65_536 + "s",
        "\x00",
        "\u0663",
        "\uff11",
        "\udcff",
        "5\x00",
    ),
    *(b"5", -5, -0.5, 10**18, 10**5000, float("nan"), float("inf"), None, [], object()),
]
SECONDS_HEADERS = ("Retry-After", "retry-after-ms", "x-amz-retry-after", "x-ratelimit-reset-tokens")


def rfc_3339(instant):
    return datetime.fromtimestamp(instant, UTC).isoformat().replace("+00:00", "Z")


# -- headers whose only purpose is to ask for a wait


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": "2.5"}, 2.5),
        ({"Retry-After": 7}, 7.0),
        ({"Retry-After": "0"}, 0.0),
        ({"Retry-After": formatdate(NOW + 30, usegmt=True)}, 30.0),
        ({"Retry-After": formatdate(NOW + 30, usegmt=True), "Date": formatdate(NOW + 20, usegmt=True)}, 10.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250.5"}, 0.2505),
        ({"retry-after-ms": "2750", "Retry-After": "3"}, 2.75),
        ({"retry-after-ms": "soon", "Retry-After": "3"}, 3.0),
        ({"x-amz-retry-after": "1500"}, 1.5),
        ({"x-amz-retry-after": "1500", "Retry-After": "1"}, 1.5),
        ({"x-amz-retry-after": "1500", "Retry-After": "2"}, 2.0),
        ({"x-amz-retry-after": "x", "Retry-After": "2"}, 2.0),
        ({"Retry-After": str(int(MAX_HINT))}, MAX_HINT),
        ({"Retry-After": str(int(MAX_HINT) + 1)}, None),
        ({"x-other": "7"}, None),
        ({}, None),
        (None, None),
    ],
)
@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_wait_that_is_asked_for_is_the_hint(status, headers, seconds):
    """In seconds, in milliseconds, which are more exact, or as a date; AWS's counts if it is longer."""
    assert http_hint(status, headers, now=NOW) == seconds


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: repr(value)[:20] if value != 10**5000 else "10**5000")
@pytest.mark.parametrize("name", SECONDS_HEADERS)
def test_a_hostile_value_is_no_hint(name, value):
    """Whatever its type or length."""
    assert http_hint(429, {name: value}) is None


def test_a_repeated_header_is_a_list():
    """Two waits contradict each other, and are no hint; two limits are two limits."""
    headers = urllib3.HTTPHeaderDict([("Retry-After", "900"), ("Retry-After", "0")])
    assert http_hint(503, headers) is None
    headers = urllib3.HTTPHeaderDict([("RateLimit", '"a";r=0;t=3'), ("RateLimit", '"b";r=0;t=9')])
    assert http_hint(429, headers) == 9.0


def test_an_unreadable_hint_leaves_the_next_one():
    """What cannot be read is as good as missing."""
    limits = {"x-ratelimit-reset-tokens": "6s", "Retry-After": "soon"}
    assert http_hint(429, limits) == 6.0
    assert http_hint(429, limits | {"Retry-After": "2"}) == 2.0


def test_the_wall_clock_is_that_of_the_context():
    """Without a `Date` header and without `now`, dates are measured against the clock."""
    with VirtualClock(start=NOW):
        assert http_hint(503, {"Retry-After": formatdate(NOW + 12, usegmt=True)}) == 12.0
        assert http_hint(429, {"anthropic-ratelimit-tokens-reset": rfc_3339(NOW + 12)}) == 12.0


# -- rate limits


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("12ms", 0.012),
        ("1s", 1.0),
        ("8.64s", 8.64),
        ("1m3.5s", 63.5),
        ("6m0s", 360.0),
        ("1h2m3s", 3723.0),
        ("23h59m59.999s", 86399.999),
        ("1d", 86400.0),
        ("500us", 0.0005),
        ("500µs", 0.0005),
        ("60", 60.0),
        (" 60 ", 60.0),
        *((text, None) for text in ("0", "0s", "0ms", "-1", "-1s", "1x", "1 m", "s", "1m-3s", "1..5s", "1ms2")),
    ],
)
def test_durations_are_read_as_openai_writes_them(text, seconds):
    """In Go's form, or as plain seconds; 0 and -1 stand for "not known"."""
    expected = None if seconds is None else pytest.approx(seconds)
    assert http_hint(429, {"x-ratelimit-reset-requests": text}) == expected


@given(st.integers(1, 10**9), st.sampled_from(["h", "m", "s", "ms"]))
def test_every_duration_is_what_it_says_or_no_hint(count, unit):
    """A duration beyond the longest hint is none."""
    seconds = count * {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}[unit]
    expected = pytest.approx(seconds) if seconds <= MAX_HINT else None
    assert http_hint(429, {"x-ratelimit-reset-tokens": f"{count}{unit}"}) == expected


def openai(requests, tokens):
    """Headers by unit: what remains, and the time of the reset."""
    headers = {}
    for unit, (remaining, reset) in {"requests": requests, "tokens": tokens}.items():
        headers |= {f"x-ratelimit-remaining-{unit}": remaining, f"x-ratelimit-reset-{unit}": reset}
    return {name: text for name, text in headers.items() if text is not None}


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        # the exhausted one, however long the other
        (openai(("0", "8s"), ("900", "6m0s")), 8.0),
        (openai(("12", "24h"), ("0", "8s")), 8.0),
        # the longest of several
        (openai(("0", "8s"), ("0", "6m0s")), 360.0),
        # nothing exhausted: a request takes one of the requests, so that these cannot have been too few
        (openai(("12", "24h"), ("900", "8s")), 8.0),
        (openai(("12", "24h"), (None, None)), None),
        # what remains is not told
        (openai((None, "8s"), (None, "3s")), 8.0),
        (openai((None, "8s"), ("900", "3s")), 8.0),
        (openai(("-1", "8s"), ("-1", "3s")), 8.0),
        # the exhausted one does not tell until when, and the others are not the cause
        (openai(("0", "-1"), ("900", "6m0s")), None),
        (openai(("0", "-1"), ("0", "8s")), 8.0),
    ],
)
def test_the_limit_that_was_exceeded_counts(headers, seconds):
    """Only some of the limits that a response tells can have refused the request."""
    assert http_hint(429, headers) == seconds


@pytest.mark.parametrize("status", [503, 529])
def test_an_overload_waits_for_an_exhausted_limit_only(status):
    """Limits with something left have nothing to do with it."""
    assert http_hint(status, openai(("0", "8s"), ("900", "60s"))) == 8.0
    assert http_hint(status, openai((None, "8s"), ("900", "60s"))) is None


@pytest.mark.parametrize("status", [200, 408, 500, 502, 504])
def test_rate_limits_are_no_hint_on_other_statuses(status):
    """They come with every response."""
    assert http_hint(status, openai(("0", "8s"), ("0", "60s"))) is None


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [
        (rfc_3339(NOW + 30), 30.0),
        (rfc_3339(NOW + 0.5), 0.5),
        (datetime.fromtimestamp(NOW + 30, timezone(timedelta(hours=9))).isoformat(), 30.0),
        (rfc_3339(NOW), None),
        (rfc_3339(NOW - 30), None),
        (datetime.fromtimestamp(NOW + 30, UTC).replace(tzinfo=None).isoformat(), None),  # of which zone?
        ("9999-12-31T23:59:59Z", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("2026-13-45T00:00:00Z", None),
        ("2" * 65_536, None),
        ("30", None),
        ("soon", None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_resets_of_anthropic_are_dates(reset, seconds):
    """In RFC 3339, measured by the response's own `Date` if it has one."""
    headers = {"anthropic-ratelimit-input-tokens-reset": reset}
    assert http_hint(429, headers, now=NOW) == seconds
    assert http_hint(429, headers | {"date": formatdate(NOW, usegmt=True)}, now=0.0) == seconds


def test_an_exhausted_limit_of_anthropic_counts():
    """As with any other: the tokens are used up, the requests are not."""
    headers = {
        "anthropic-ratelimit-requests-remaining": "49",
        "anthropic-ratelimit-requests-reset": rfc_3339(NOW + 60),
        "anthropic-ratelimit-output-tokens-remaining": "0",
        "anthropic-ratelimit-output-tokens-reset": rfc_3339(NOW + 9),
    }
    assert http_hint(429, headers, now=NOW) == 9.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"RateLimit": '"default";r=0;t=30'}, 30.0),
        ({"RateLimit": '"burst";r=5;t=3, "daily";r=0;t=3000'}, 3000.0),
        ({"RateLimit": '"burst";r=0;t=3, "daily";r=0;t=3000'}, 3000.0),
        ({"RateLimit": '"default";r=5;t=30'}, None),
        ({"RateLimit": '"default";r=0'}, None),
        ({"RateLimit": "limit=100, remaining=0, reset=30"}, 30.0),
        ({"RateLimit": "limit=100, remaining=1, reset=30"}, None),
        ({"RateLimit-Remaining": "0", "RateLimit-Reset": "30"}, 30.0),
        ({"RateLimit-Remaining": "0", "RateLimit-Reset": "1767225600"}, None),  # seconds since 1970, as some send
        ({"RateLimit": '"default";r=0;t=-30'}, None),
        ({"RateLimit": '"a";r=0;t=5,' * 10_000}, None),
        ({"RateLimit": "nonsense"}, None),
        ({"RateLimit": '"default";r=0;t=30', "Retry-After": "5"}, 5.0),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_ietf_headers_are_read(headers, seconds):
    """Only limits with nothing remaining; `Retry-After` wins."""
    assert http_hint(429, headers) == seconds


# -- bodies


def google(delay, kind="type.googleapis.com/google.rpc.RetryInfo"):
    return {"error": {"code": 429, "details": [{"@type": "x"}, 5, {"@type": kind, "retryDelay": delay}]}}


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        (google("3.5s"), 3.5),
        (google("34.074824224s"), 34.074824224),
        (google("0s"), None),
        (google("-3s"), None),
        (google(3.5), None),
        (google(None), None),
        (google("9" * 400 + "s"), None),
        (google("3s", kind="google.rpc.QuotaFailure"), None),
        (google("3s", kind=5), None),
        ([google("3s")], 3.0),
        ([google("3s"), google("3s")], None),
        ({"error": {"details": "3s"}}, None),
        ({"error": "3s"}, None),
        (b'{"error": {"details": [{"@type": "google.rpc.RetryInfo", "retryDelay": "2s"}]}}', 2.0),
        ('[{"error": {"details": [{"@type": "google.rpc.RetryInfo", "retryDelay": "2s"}]}}]', 2.0),
        (b"", None),
        (b"[" * 60_000, None),
        (b"\xff", None),
    ],
    ids=lambda value: str(value)[:50],
)
def test_the_delay_of_google_is_read_in_the_body(body, seconds):
    """From the details of the error, by any status."""
    assert http_hint(429, {}, body) == seconds
    assert http_hint(503, None, body) == seconds


def test_headers_win_over_the_body():
    """`Retry-After` is what the server asks for last."""
    assert http_hint(429, {"Retry-After": "1"}, google("3s")) == 1.0
    assert http_hint(429, {"x-ratelimit-reset-tokens": "9s"}, google("3s")) == 3.0


def test_a_long_body_is_not_parsed():
    """However good what it says."""
    short = '{"error": {"code": 429}}'
    assert error_body(short.ljust(MAX_BODY)) == {"error": {"code": 429}}
    assert error_body(short.ljust(MAX_BODY + 1)) is None


# -- whatever comes

NAMES = st.sampled_from(
    [
        *("Retry-After", "Date", "retry-after-ms", "x-amz-retry-after", "RateLimit", "RateLimit-Reset"),
        *("RateLimit-Remaining", "x-ratelimit-reset-requests", "x-ratelimit-remaining-requests"),
        *("x-ratelimit-reset-tokens", "x-ratelimit-remaining-tokens", "anthropic-ratelimit-requests-reset"),
        *("anthropic-ratelimit-tokens-reset", "anthropic-ratelimit-tokens-remaining"),
    ]
)
PIECES = st.sampled_from(
    [*"0123456789", ".", ":", "-", "+", "T", "Z", "ms", "s", "m", "h", "µs", ";r=0", ";t=", '"a"', ",", " ", "9" * 400]
)
TEXTS = st.text() | st.lists(PIECES, max_size=12).map("".join) | st.datetimes().map(lambda at: f"{at.isoformat()}Z")
VALUES = TEXTS | st.binary() | st.integers() | st.floats() | st.none() | st.lists(st.integers())
JSON = st.recursive(
    TEXTS | st.integers() | st.floats() | st.none() | st.just("google.rpc.RetryInfo"),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["error", "details", "@type", "retryDelay"]) | st.text(), inner)
    ),
)


@given(
    status=st.sampled_from([429, 500, 503, 529]),
    headers=st.none() | st.dictionaries(NAMES | st.text() | st.binary() | st.integers(), VALUES),
    body=st.binary() | TEXTS | JSON,
    now=st.none() | st.floats(-1e12, 1e12),
)
@example(status=429, headers={"anthropic-ratelimit-tokens-reset": "0001-01-01T00:00:00+23:59"}, body=None, now=None)
def test_nothing_that_a_server_sends_is_an_error(status, headers, body, now):
    """The answer is None, or a wait from nothing to the longest hint."""
    hint = http_hint(status, headers, body, now=now)
    assert hint is None or (type(hint) is float and 0.0 <= hint <= MAX_HINT)
