"""Hints: what a server may send as Retry-After or as gRPC's pushback, and what is made of it."""

import time
from email.utils import formatdate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from abate.schedule import pushback, retry_after
from abate.schedule.hints import MAX_HINT, NEVER
from abate.testing import VirtualClock

FULLWIDTH, ARABIC = "\uff11\uff12", "\u0663"  # digits to str.isdigit and int, not to HTTP
MOMENT = 784111777.0  # 1994-11-06 08:49:37 GMT, the example of RFC 9110


def short(value):
    """The name of a case, where the value itself has thousands of digits."""
    return repr(value)[:40]


def rfc_1123(instant):
    return formatdate(instant, usegmt=True)


def rfc_850(instant):
    return time.strftime("%A, %d-%b-%y %H:%M:%S GMT", time.gmtime(instant))


def asctime(instant):
    return time.asctime(time.gmtime(instant))


FORMS = (rfc_1123, rfc_850, asctime)

# what dates are made of, to get further into their parser than arbitrary text does
date_like = st.lists(
    st.sampled_from(
        [
            *(
                "Sun,",
                "Sunday,",
                "Sun",
                "06",
                "6",
                "Nov",
                "1994",
                "94",
                "08:49:37",
                "08:49",
                "08.49.37",
                "GMT",
                "EST",
            ),
            *("+0000", "-0800", "+99999999999", "06-Nov-94", "-Nov-", "--", "-", "+", ",", ":", ".", "1:", ":1", "T"),
            *(
                "0",
                "9" * 20,
                "9" * 400,
                "9" * 5000,
                "²",
                FULLWIDTH,
                ARABIC,
                "\x00",
                "\udcff",
                "00",
                "31",
                "Feb",
                "2100",
            ),
        ]
    ),
    max_size=8,
)
texts = st.text() | st.text("0123456789 ,.-+") | st.builds(str.join, st.sampled_from([" ", "", "\t"]), date_like)


# -- Retry-After in seconds


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 120 ", 120.0),
        ("\t7\r\n", 7.0),
        ("007", 7.0),
        ("0000000000000005", 5.0),
        ("1.5", 1.5),
        (" 0.25 ", 0.25),
        ("999999999", 999999999.0),
        ("1000000000", MAX_HINT),
    ],
    ids=short,
)
def test_seconds_are_read(value, seconds):
    """Digits, with a fraction or without, and with or without spaces around them."""
    assert retry_after(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        *(
            "1000000001",
            str(10**18),
            "9" * 400,
            "9" * 65_536,
            "0" * 5000 + "3",
            "1000000000.5",
            ".",
            "5.",
            ".5",
            "1.5.2",
        ),
        *("", " ", "soon", "-1", "-0", "+5", "1,5", "3, 5", "3 5", "5s", "1e3", "0x10", "NaN", "inf", "1_000"),
        *(FULLWIDTH, ARABIC, "²", "5\x00", "Sun", "GMT", "Sun, 06 Nov 1994", "Sun, 06 Foo 1994 08:49:37 GMT"),
        *("2026-01-01T00:00:00Z", "Sun, 06 Nov 99999 08:49:37 GMT", "Sun, 06 Nov 1994 xx:yy:zz GMT"),
        f"Sun, 06 Nov {'9' * 400} 08:49:37 GMT",
    ],
    ids=short,
)
def test_what_cannot_be_read_is_no_hint(value):
    """Neither a date nor a number of seconds within reason: the own backoff counts, and nothing is raised."""
    assert retry_after(value) is None


def test_no_header_is_no_hint():
    """A response without the header asks for nothing."""
    assert retry_after(None) is None
    assert retry_after(None, now=0.0, date=rfc_1123(MOMENT)) is None


@given(st.integers(0, 10**9))
def test_every_number_of_seconds_is_read_as_it_is(seconds):
    """What is written in digits is what is asked for."""
    assert retry_after(str(seconds)) == seconds


# -- Retry-After as a date


@pytest.mark.parametrize(
    "value",
    [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "Sun, 06 Nov 1994 09:49:37 +0100",
        "  Sun, 06 Nov 1994 08:49:37 GMT\r\n",
    ],
)
def test_all_forms_of_a_date_are_read(value):
    """RFC 1123, RFC 850 and asctime, which HTTP asks clients to understand, and another zone."""
    assert retry_after(value, now=MOMENT - 30.0) == 30.0


# two digits of a year reach to 2068
instants = st.integers(0, 3_000_000_000)


@given(asked=instants, now=instants, form=st.sampled_from(FORMS))
def test_a_date_asks_for_the_time_until_then(asked, now, form):
    """The seconds from now to the date; 0 if it has passed; no hint if that is more than thirty years."""
    wait = max(0.0, asked - now)
    assert retry_after(form(asked), now=float(now)) == (wait if wait <= MAX_HINT else None)


@given(sent=instants, wait=st.integers(0, 10**6), now=instants, form=st.sampled_from(FORMS))
def test_a_server_whose_clock_is_off_is_understood(sent, wait, now, form):
    """With the response's own Date, the wait is the difference of both, whatever the time is here."""
    assert retry_after(form(sent + wait), now=float(now), date=f" {form(sent)} ") == wait


@pytest.mark.parametrize("date", ["", "yesterday", "120", f"Sun, 06 Nov {'9' * 400} 08:49:37 GMT"], ids=short)
def test_a_date_header_that_cannot_be_read_is_left_out(date):
    """The time here counts then."""
    assert retry_after(rfc_1123(MOMENT), now=MOMENT - 30.0, date=date) == 30.0


def test_the_date_header_does_not_touch_seconds():
    """Seconds are counted from now."""
    assert retry_after("30", date=rfc_1123(MOMENT)) == 30.0


def test_now_is_the_wall_clock_of_the_context():
    """Without a given time the clock is read."""
    with VirtualClock(start=MOMENT - 12.0) as clock:
        assert retry_after(rfc_1123(MOMENT)) == 12.0
        clock.advance(20.0)
        assert retry_after(rfc_1123(MOMENT)) == 0.0


def test_a_date_far_away_is_no_hint():
    """A wait of centuries is a mistake."""
    assert retry_after("Fri, 31 Dec 9999 23:59:59 GMT", now=0.0) is None


# -- gRPC's pushback


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        ("250", 0.25),
        (" 1500 ", 1.5),
        ("00000000000000250", 0.25),
        (str(10**12), MAX_HINT),
        (str(10**12 + 1), NEVER),
        (str(10**18), NEVER),
        ("9" * 400, NEVER),
        ("9" * 5000, NEVER),
        *((text, NEVER) for text in ("", " ", "-1", "-0", "+5", "1.5", "soon", "3, 5", ARABIC, FULLWIDTH, "²", "1e3")),
    ],
    ids=short,
)
def test_pushback_is_read_or_means_stop(value, seconds):
    """Milliseconds; what is negative, unreadable or beyond all measure asks not to come back."""
    assert pushback(value) == seconds


@given(st.integers(0, 10**12))
def test_every_number_of_milliseconds_is_read(milliseconds):
    """A thousandth of what is written."""
    assert pushback(str(milliseconds)) == milliseconds / 1000


# -- whatever comes


@given(value=texts, date=st.none() | texts, now=st.none() | st.floats(-1e12, 1e12))
@example(value="Sun, 06 Nov 1994 08:49:37 GMT", date=" , ", now=None)
def test_no_text_is_an_error(value, date, now):
    """Servers send anything: the answer is None or a wait from nought to the longest, and nothing is raised."""
    hint = retry_after(value, now=now, date=date)
    assert hint is None or (type(hint) is float and 0.0 <= hint <= MAX_HINT)


@given(texts)
def test_no_text_is_an_error_in_pushback(value):
    """The same for gRPC, where what cannot be read is a stop."""
    hint = pushback(value)
    assert type(hint) is float
    assert hint == NEVER or 0.0 <= hint <= MAX_HINT
