"""What SQS allows in a message, and what is written on a dead letter: no I/O, and no boto3.

The rules of SQS:

* a body is text of at least one character; of the control characters only tab, line feed and carriage return are
  allowed, and no surrogates;
* up to ten attributes, none of them empty, with names of letters, digits, ``_``, ``-`` and ``.``;
* a bound on the size of it all: body, and names, types and values of the attributes, in bytes of UTF-8.

A dead letter is the message as it was, with the attributes ``Abate-Reason``, ``Abate-Kind``, ``Abate-Source`` and
``Abate-Trace`` in that order, as far as there is room. What the sender wrote is never cut: the reason is.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, TypeAlias

from abate.work.source import Bury

LARGEST = 262_144
"""Bytes of a message; SQS allows more where a queue was told so."""
MOST_ATTRIBUTES = 10
LONGEST_TRACE = 8_000
"""Bytes of a trace that are kept: its end, where the error is."""
REPLACEMENT = "\ufffd"

Attributes: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Message attributes in the words of boto3: names, and each with its ``DataType`` and ``StringValue`` or
``BinaryValue``."""

_REFUSED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAME = re.compile(r"(?!\.)(?!.*\.\.)(?!(?i:aws|amazon)\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")


def text(name: str, value: object) -> str:
    """Return `value` if SQS takes it as text, or raise an error that names what it refuses.

    >>> text("body", "a\\x00b")
    Traceback (most recent call last):
    ValueError: body holds '\\x00' at place 1, which SQS refuses
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {value!r}")
    if not value:
        raise ValueError(f"{name} must have at least one character, or SQS refuses it")
    found = _REFUSED.search(value)
    if found:
        raise ValueError(f"{name} holds {found[0]!r} at place {found.start()}, which SQS refuses")
    return value


def typed(attributes: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Attributes in the words of boto3, or an error that names the one that SQS refuses.

    >>> typed({"trace": "abc"})
    {'trace': {'DataType': 'String', 'StringValue': 'abc'}}
    """
    if len(attributes) > MOST_ATTRIBUTES:
        raise ValueError(f"SQS takes {MOST_ATTRIBUTES} attributes at most, not {len(attributes)}")
    for name in attributes:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                "an attribute's name must have 1 to 256 of the letters A to Z, digits, '_', '-' and '.', not begin with"
                f" 'AWS.' or 'Amazon.', and have no '.' at its ends or beside another, not {name!r}"
            )
    return {name: _string(text(f"the attribute {name!r}", value)) for name, value in attributes.items()}


def plain(attributes: Attributes) -> dict[str, str]:
    """Attributes as text: those that are binary in base64.

    >>> plain({"n": {"DataType": "Number", "StringValue": "1"}, "b": {"DataType": "Binary", "BinaryValue": b"hi"}})
    {'n': '1', 'b': 'aGk='}
    """
    return {
        name: value["StringValue"] if "StringValue" in value else b64encode(value.get("BinaryValue", b"")).decode()
        for name, value in attributes.items()
    }


def size(body: str, attributes: Attributes) -> int:
    """Bytes of a message, as SQS counts them.

    >>> size("é", {"n": {"DataType": "Number", "StringValue": "12"}})
    11
    """
    return len(body.encode()) + sum(
        len(name) + len(value["DataType"]) + len(value.get("StringValue", "").encode() or value.get("BinaryValue", b""))
        for name, value in attributes.items()
    )


def fits(body: str, attributes: Attributes, largest: int) -> None:
    """Refuse a message that is larger than a queue takes.

    >>> fits("x" * 300_000, {}, LARGEST)
    Traceback (most recent call last):
    ValueError: a message may have 262144 bytes, attributes included, not 300000
    """
    if (bytes_ := size(body, attributes)) > largest:
        raise ValueError(f"a message may have {largest} bytes, attributes included, not {bytes_}")


def dead(body: str, attributes: Attributes, bury: Bury, source: str, largest: int) -> dict[str, Mapping[str, Any]]:
    """The attributes of a dead letter: the sender's, and why it is one.

    >>> sorted(plain(dead("{}", {}, Bury("permanent", "no address"), "orders", LARGEST)).items())
    [('Abate-Kind', 'permanent'), ('Abate-Reason', 'no address'), ('Abate-Source', 'orders')]
    """
    why = {
        "Abate-Reason": bury.reason or bury.kind,
        "Abate-Kind": bury.kind,
        "Abate-Source": source,
        "Abate-Trace": bury.trace.encode(errors="replace")[-LONGEST_TRACE:].decode(errors="ignore"),
    }
    # one that was a dead letter before has a new reason
    written = {name: value for name, value in attributes.items() if name not in why}
    room = largest - size(body, written)
    for name, value in why.items():
        kept = _cut(_REFUSED.sub(REPLACEMENT, value), room - size("", {name: _string("")}))
        if kept and len(written) < MOST_ATTRIBUTES:
            written[name] = _string(kept)
            room -= size("", {name: written[name]})
    return written


def _string(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


def _cut(value: str, room: int) -> str:
    """As much of a text as has room in so many bytes."""
    return value.encode()[: max(0, room)].decode(errors="ignore")
