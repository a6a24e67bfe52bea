"""The parser of server-sent events: the WHATWG's rules, whatever pieces the bytes come in."""

import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate.clients.sse_parser import MAX_RETRY_DIGITS, EventParser, EventTooLarge, ServerSentEvent


def parse(*pieces, **settings):
    parser = EventParser(**settings)
    return [event for piece in pieces for event in parser.feed(piece)]


def texts(*pieces):
    return [event.data for event in parse(*pieces)]


# -- the examples of the standard


def test_the_first_example_of_the_standard():
    """Several lines of data are joined by a line feed."""
    assert texts(b"data: YHOO\ndata: +2\ndata: 10\n\n") == ["YHOO\n+2\n10"]


def test_the_second_example_of_the_standard():
    """A comment is nothing; an ID stays until the next one; an empty one resets it; one space belongs to the colon."""
    found = parse(b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n")
    assert [(event.data, event.id) for event in found] == [
        ("first event", "1"),
        ("second event", ""),
        (" third event", ""),
    ]


def test_the_third_example_of_the_standard():
    """A field without a value has an empty one; the last event has no blank line and is dropped."""
    assert texts(b"data\n\ndata\ndata\n\ndata:") == ["", "\n"]


def test_the_fourth_example_of_the_standard():
    """The space after the colon may be missing."""
    assert texts(b"data:test\n\ndata: test\n\n") == ["test", "test"]


# -- fields


def test_an_event_has_a_name_if_the_server_gives_it_one():
    """Otherwise it is a message; the name is that of one event only."""
    found = parse(b"event: price\ndata: 1\n\ndata: 2\n\nevent: price\n\ndata: 3\n\n")
    assert [event.event for event in found] == ["price", "message", "message"]


def test_an_id_stays_for_the_events_after_it():
    """It is where to resume."""
    assert [event.id for event in parse(b"id: 7\ndata: a\n\ndata: b\n\nid: 8\ndata: c\n\n")] == ["7", "7", "8"]


def test_an_id_with_a_null_is_ignored():
    """As the standard says."""
    assert [event.id for event in parse(b"id: 7\ndata: a\n\nid: 8\0\ndata: b\n\n")] == ["7", "7"]


def test_an_id_counts_when_its_event_ends():
    """Also without data; but not if the stream is cut off before the blank line."""
    parser = EventParser(last_id="6")
    assert list(parser.feed(b"id: 7\n")) == []
    assert parser.last_id == "6"
    assert list(parser.feed(b"\n")) == []
    assert parser.last_id == "7"


def test_a_stream_continues_with_the_last_id():
    """Of the connection before."""
    assert parse(b"data: a\n\n", last_id="7") == [ServerSentEvent("message", "a", "7")]


@pytest.mark.parametrize(
    ("value", "retry"),
    [
        (b"250", 250),
        (b"0", 0),
        (b"007", 7),
        (b"", None),
        (b"-1", None),
        (b"+1", None),
        (b"1.5", None),
        (b"1e3", None),
        (b" 1", None),
        ("٣".encode(), None),
        (b"1" * MAX_RETRY_DIGITS, int("1" * MAX_RETRY_DIGITS)),
        (b"1" * 10_000, 10**MAX_RETRY_DIGITS - 1),
    ],
)
def test_retry_has_ascii_digits_only(value, retry):
    """Anything else is ignored, and a number that is too long is as large as can be."""
    parser = EventParser()
    (event,) = parser.feed(b"retry: " + value + b"\ndata: a\n\n")
    assert event.retry == parser.retry == retry


def test_retry_counts_without_an_event():
    """It is often the first thing that a server sends; an event has only its own."""
    parser = EventParser()
    (event,) = parser.feed(b"retry: 3000\n\ndata: a\n\n")
    assert (parser.retry, event.retry) == (3000, None)


@pytest.mark.parametrize(
    "line", [b"Data: a", b" data: a", b"datum: a", b":data: a", b"data : a", b"\xff: a", b"a" * 99]
)
def test_unknown_fields_are_ignored(line):
    """Names are case-sensitive."""
    assert parse(line + b"\n\n") == []


def test_data_without_characters_is_an_event_and_no_data_is_none():
    """A blank line alone ends nothing."""
    assert texts(b"\n\n\ndata:\n\nevent: x\n\n") == [""]


# -- bytes


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_end_in_three_ways(end):
    """Also byte by byte."""
    stream = end.join([b"data: a", b"data: b", b"", b"data: c", b"", b""])
    assert texts(stream) == texts(*[bytes([byte]) for byte in stream]) == ["a\nb", "c"]


def test_an_event_is_there_with_its_last_carriage_return():
    """It does not wait for a line feed, which may belong to it and is no blank line of its own."""
    parser = EventParser()
    assert [event.data for event in parser.feed(b"data: a\r\r")] == ["a"]
    assert list(parser.feed(b"")) == []
    assert list(parser.feed(b"\n")) == []
    assert [event.data for event in parser.feed(b"data: b\n\n")] == ["b"]


@pytest.mark.parametrize("pieces", [[b"\xef\xbb\xbfdata: a\n\n"], [b"\xef", b"\xbb", b"\xbf", b"data: a\n\n"]])
def test_a_byte_order_mark_at_the_start_is_ignored(pieces):
    """Elsewhere it is a part of the line."""
    assert texts(*pieces) == ["a"]
    assert texts(b"\n\xef\xbb\xbfdata: a\n\n") == []


def test_text_that_is_not_utf_8_is_replaced():
    """Nothing raises."""
    assert texts(b"data: \xff\xfe caf\xc3\xa9\n\n", b"data: \xc3\n\n") == ["�� café", "�"]


# -- limits


@pytest.mark.parametrize(
    "pieces",
    [
        [b"x" * 101],
        [b"x"] * 101,
        [b": " + b"x" * 99],
        [b"data: 234567890\n" * 9, b"data: 234567890\n"],
        [b"data\n"] * 101,
        [b"event: " + b"x" * 94],
    ],
)
def test_an_event_that_is_too_large_is_an_error(pieces):
    """Memory is bounded, whatever the server sends; the events before it came."""
    parser = EventParser(max_event=100)
    assert [event.data for event in parser.feed(b"data: fine\n\n")] == ["fine"]
    with pytest.raises(EventTooLarge, match="larger than 100 bytes: raise max_event"):
        for piece in pieces:
            assert list(parser.feed(piece)) == []


def test_many_small_events_and_comments_are_not_too_large():
    """The limit is for each."""
    assert len(texts(b": comment\ndata: a\n\n" * 1000)) == 1000
    assert parse(b": " + b"x" * 90 + b"\n", max_event=100) == []
    parser = EventParser(max_event=100)
    for _ in range(1000):
        assert list(parser.feed(b": " + b"x" * 90 + b"\n")) == []


@pytest.mark.parametrize("max_event", [0, -1, 1.5, True, "1"])
def test_the_limit_is_checked(max_event):
    """At construction."""
    with pytest.raises((TypeError, ValueError), match="max_event must be a whole number"):
        EventParser(max_event=max_event)


def test_values_can_be_copied():
    """Events are frozen values; the error survives a pickle."""
    event = ServerSentEvent("price", "42", "7", 100)
    assert pickle.loads(pickle.dumps(event)) == event
    assert hash(event) == hash(ServerSentEvent("price", "42", "7", 100))
    with pytest.raises(AttributeError, match="frozen"):
        event.data = "43"
    assert pickle.loads(pickle.dumps(EventTooLarge(7))).max_event == 7


# -- properties

lines = st.sampled_from(
    [
        b"data: a",
        b"data:",
        b"data",
        b"id: 1",
        b"id",
        b"id: \0",
        b"event: e",
        b"retry: 10",
        b"retry: x",
        b": c",
        b"",
        b"",
    ]
) | st.binary(max_size=12)
streams = st.builds(
    lambda parts, bom: (b"\xef\xbb\xbf" if bom else b"") + b"".join(line + end for line, end in parts),
    st.lists(st.tuples(lines, st.sampled_from([b"\n", b"\r", b"\r\n"])), max_size=30),
    st.booleans(),
)


def outcome(pieces, max_event):
    """The events, where the stream is to be resumed, and whether it was too large."""
    parser, found = EventParser(max_event=max_event), []
    try:
        for piece in pieces:
            found.extend(parser.feed(piece))
    except EventTooLarge:
        return found, None, None, True
    return found, parser.last_id, parser.retry, False


@given(st.data(), streams, st.sampled_from([10, 40, 1_000_000]))
def test_any_pieces_give_the_same_events(data, stream, max_event):
    """However the bytes are cut, also when there are too many."""
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=10).map(sorted))
    edges = [0, *cuts, len(stream)]
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    whole, cut = EventParser(max_event=max_event), outcome(pieces, max_event)
    found = []
    try:
        for event in whole.feed(stream):
            found.append(event)
    except EventTooLarge:
        assert cut == (found, None, None, True)
    else:
        assert cut == (found, whole.last_id, whole.retry, False)


def by_the_book(stream):
    """The rules once more, the slow way: all bytes at once, decoded first."""
    text = stream.decode("utf-8", errors="replace").removeprefix("\ufeff")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    found, data, event, last, shown = [], "", "", "", ""
    for line in text.split("\n")[:-1]:
        name, colon, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if not line:
            shown = last
            if data:
                found.append((event or "message", data[:-1], shown))
            data = event = ""
        elif colon and not name:
            pass
        elif name == "data":
            data += value + "\n"
        elif name == "event":
            event = value
        elif name == "id" and "\0" not in value:
            last = value
    return found, shown


@given(streams | st.binary(max_size=200))
def test_the_events_are_those_of_the_rules(stream):
    """Compared with a second implementation, on any bytes."""
    parser = EventParser()
    found = [(event.event, event.data, event.id) for event in parser.feed(stream)]
    assert (found, parser.last_id) == by_the_book(stream)
