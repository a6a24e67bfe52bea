"""Encode keys and bodies as text of PostgreSQL.

Text can be read and written by SQL. It can hold every character except U+0000, so U+0000 is stored as U+0001 U+0002,
and U+0001 as U+0001 U+0001.
"""

from __future__ import annotations


def encode_text(text: str) -> str:
    """Encode a text for storage.

    >>> encode_text("orders/42"), encode_text("\\0"), decode_text(encode_text("\\1\\0\\2").encode()) == "\\1\\0\\2"
    ('orders/42', '\\x01\\x02', True)
    """
    if "\0" in text or "\1" in text:
        return text.replace("\1", "\1\1").replace("\0", "\1\2")
    return text


def decode_text(kept: bytes | None) -> str:
    """Decode a stored text; NULL is an empty text."""
    text = (kept or b"").decode()
    if "\1" in text:
        return "\1".join(part.replace("\1\2", "\0") for part in text.split("\1\1"))
    return text
