"""What SQS allows in a message, and what is written on a dead letter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate.clients.sqs_message_limits import (
    MAX_ATTRIBUTES,
    MAX_BYTES,
    check_size,
    check_text,
    dead_letter_attributes,
    decode_attributes,
    encode_attributes,
    size,
)
from abate.work.source import Bury

names = st.text("abcXYZ019_-", min_size=1, max_size=20)
values = st.one_of(
    st.builds(lambda value: {"DataType": "String", "StringValue": value}, st.text("aé€😀", min_size=1, max_size=50)),
    st.builds(lambda value: {"DataType": "Binary", "BinaryValue": value}, st.binary(min_size=1, max_size=50)),
)
burials = st.builds(Bury, st.sampled_from(("permanent", "fatal", "receives")), st.text(), st.text())


@given(
    body=st.text("aé€😀", min_size=1, max_size=100),
    attributes=st.dictionaries(names, values, max_size=MAX_ATTRIBUTES),
    bury=burials,
    room=st.integers(0, 300),
)
def test_a_dead_letter_is_one_that_sqs_takes_and_keeps_what_the_sender_wrote(body, attributes, bury, room):
    """Within the size, the number of attributes and the characters; only the reason is ever cut."""
    largest = size(body, attributes) + room
    written = dead_letter_attributes(body, attributes, bury, "orders", largest)
    check_size(body, written, largest)
    assert len(written) <= MAX_ATTRIBUTES
    assert attributes.items() <= written.items()
    ours = decode_attributes({name: value for name, value in written.items() if name not in attributes})
    assert ours.keys() <= {"Abate-Reason", "Abate-Kind", "Abate-Source", "Abate-Trace"}
    for name, value in ours.items():
        check_text(name, value)


@given(bury=burials)
def test_where_there_is_room_the_reason_is_there(bury):
    """Whatever characters it holds; one that is empty is replaced by the kind."""
    written = decode_attributes(dead_letter_attributes("{}", {}, bury, "orders", MAX_BYTES))
    assert len(written["Abate-Reason"]) == len(bury.reason or bury.kind)
    assert (written["Abate-Kind"], written["Abate-Source"]) == (bury.kind, "orders")
    assert ("Abate-Trace" in written) == bool(bury.trace)


def test_the_reason_goes_before_the_rest():
    """With one attribute left to write, it is the reason; and a reason from before is replaced."""
    nine = {str(place): {"DataType": "String", "StringValue": "x"} for place in range(9)}
    written = dead_letter_attributes("{}", nine, Bury("permanent", "no address", "trace"), "orders", MAX_BYTES)
    assert written.keys() - nine.keys() == {"Abate-Reason"}
    again = dead_letter_attributes("{}", written, Bury("fatal", "no street"), "orders", MAX_BYTES)
    assert decode_attributes(again)["Abate-Reason"] == "no street"


def test_of_a_trace_the_end_is_kept():
    """That is where the error is."""
    written = decode_attributes(
        dead_letter_attributes("{}", {}, Bury("fatal", "x", "€" * 10_000 + "ValueError"), "orders", MAX_BYTES)
    )
    assert written["Abate-Trace"].endswith("€ValueError")
    assert len(written["Abate-Trace"].encode()) <= 8_000


@given(st.text(min_size=1))
def test_text_takes_what_sqs_allows(value):
    """Tab, line feed, carriage return and what is above them, but for surrogates and the last two."""
    allowed = all(
        code in (9, 10, 13) or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or 0x10000 <= code <= 0x10FFFF
        for code in map(ord, value)
    )
    if allowed:
        assert check_text("body", value) is value
    else:
        with pytest.raises(ValueError, match="which SQS refuses"):
            check_text("body", value)


@pytest.mark.parametrize("code", [0, 8, 0xB, 0xC, 0x1F, 0xD800, 0xDFFF, 0xFFFE, 0xFFFF], ids=hex)
def test_text_refuses_the_characters_at_the_bounds(code):
    """Each is named."""
    with pytest.raises(ValueError, match="at place 1"):
        check_text("body", f"a{chr(code)}b")


@pytest.mark.parametrize("name", ["a", "A-b_c.d9", "x" * 256, "aws", "Amazon"])
def test_names_that_sqs_takes(name):
    """Letters, digits, and three signs."""
    assert encode_attributes({name: "x"})


@pytest.mark.parametrize(
    "name", ["", ".a", "a.", "a..b", "AWS.a", "aws.a", "Amazon.a", "é", "a b", "a\n", "x" * 257, 5]
)
def test_names_that_sqs_refuses(name):
    """Before anything is sent."""
    with pytest.raises(ValueError, match="an attribute's name must"):
        encode_attributes({name: "x"})
