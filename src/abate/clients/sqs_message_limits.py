"""The limits of SQS for messages, and the attributes of a dead letter: no I/O, and no boto3.

The rules of SQS:

* a body is text of at least one character; of the control characters only tab, line feed and carriage return are
  allowed, and no surrogates;
* up to ten attributes, none of them empty, with names of letters, digits, ``_``, ``-`` and ``.``;
* a limit for the total size: body, and names, types and values of the attributes, in bytes of UTF-8.

A dead letter is the original message with the attributes ``Abate-Reason``, ``Abate-Kind``, ``Abate-Source`` and
``Abate-Trace`` in that order, as far as they fit. The sender's data is never cut: the reason is.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, TypeAlias

from abate.work.source import Bury

MAX_BYTES = 262_144
"""Bytes of a message; SQS allows more if the queue is configured so."""
MAX_ATTRIBUTES = 10
MAX_TRACE_BYTES = 8_000
"""Bytes of a traceback that are kept: its end, where the error is."""
REPLACEMENT = "\ufffd"

Attributes: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Message attributes in boto3's form: by name, each with ``DataType`` and ``StringValue`` or ``BinaryValue``."""

_REFUSED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAME = re.compile(r"(?!\.)(?!.*\.\.)(?!(?i:aws|amazon)\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")


def check_text(name: str, value: object) -> str:
    """Return `value` if SQS takes it as text, or raise an error that names what it refuses.

    >>> check_text("body", "a\\x00b")
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


def encode_attributes(attributes: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return attributes in boto3's form, or raise an error that names the one that SQS refuses.

    >>> encode_attributes({"trace": "abc"})
    {'trace': {'DataType': 'String', 'StringValue': 'abc'}}
    """
    if len(attributes) > MAX_ATTRIBUTES:
        raise ValueError(f"SQS takes {MAX_ATTRIBUTES} attributes at most, not {len(attributes)}")
    for name in attributes:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                "an attribute's name must have 1 to 256 of the letters A to Z, digits, '_', '-' and '.', not begin with"
                f" 'AWS.' or 'Amazon.', and have no '.' at its ends or beside another, not {name!r}"
            )
    return {name: _string(check_text(f"the attribute {name!r}", value)) for name, value in attributes.items()}


def decode_attributes(attributes: Attributes) -> dict[str, str]:
    """Return attributes as text; binary ones in base64.

    >>> decode_attributes({"n": {"StringValue": "1"}, "b": {"BinaryValue": b"hi"}})
    {'n': '1', 'b': 'aGk='}
    """
    return {
        name: value["StringValue"] if "StringValue" in value else b64encode(value.get("BinaryValue", b"")).decode()
        for name, value in attributes.items()
    }


def size(body: str, attributes: Attributes) -> int:
    """Return the size of a message in bytes, as SQS counts it.

    >>> size("é", {"n": {"DataType": "Number", "StringValue": "12"}})
    11
    """
    return len(body.encode()) + sum(
        len(name) + len(value["DataType"]) + len(value.get("StringValue", "").encode() or value.get("BinaryValue", b""))
        for name, value in attributes.items()
    )


def check_size(body: str, attributes: Attributes, max_bytes: int) -> None:
    """Refuse a message that is larger than the queue takes.

    >>> check_size("x" * 300_000, {}, MAX_BYTES)
    Traceback (most recent call last):
    ValueError: a message may have 262144 bytes, attributes included, not 300000
    """
    if (bytes_ := size(body, attributes)) > max_bytes:
        raise ValueError(f"a message may have {max_bytes} bytes, attributes included, not {bytes_}")


def dead_letter_attributes(
    body: str, attributes: Attributes, bury: Bury, source: str, max_bytes: int
) -> dict[str, Mapping[str, Any]]:
    """Return the attributes of a dead letter: the sender's, and the reason.

    >>> attributes = dead_letter_attributes("{}", {}, Bury("permanent", "no address"), "orders", MAX_BYTES)
    >>> sorted(decode_attributes(attributes).items())
    [('Abate-Kind', 'permanent'), ('Abate-Reason', 'no address'), ('Abate-Source', 'orders')]
    """
    why = {
        "Abate-Reason": bury.reason or bury.kind,
        "Abate-Kind": bury.kind,
        "Abate-Source": source,
        "Abate-Trace": bury.trace.encode(errors="replace")[-MAX_TRACE_BYTES:].decode(errors="ignore"),
    }
    # a message that was a dead letter before gets a new reason
    written = {name: value for name, value in attributes.items() if name not in why}
    room = max_bytes - size(body, written)
    for name, value in why.items():
        kept = _cut(_REFUSED.sub(REPLACEMENT, value), room - size("", {name: _string("")}))
        if kept and len(written) < MAX_ATTRIBUTES:
            written[name] = _string(kept)
            room -= size("", {name: written[name]})
    return written


def _string(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


def _cut(value: str, room: int) -> str:
    """Cut a text to this many bytes."""
    return value.encode()[: max(0, room)].decode(errors="ignore")
