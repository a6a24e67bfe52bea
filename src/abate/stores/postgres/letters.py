"""How keys and bodies are written in PostgreSQL.

They are text, so that they can be read and written by SQL. Its text holds every character but U+0000; that one is
written as U+0001 U+0002, and U+0001 as itself twice.
"""

from __future__ import annotations


def written(text: str) -> str:
    """A text as it is kept.

    >>> written("orders/42"), written("\\0"), read(written("\\1\\0\\2").encode()) == "\\1\\0\\2"
    ('orders/42', '\\x01\\x02', True)
    """
    if "\0" in text or "\1" in text:
        return text.replace("\1", "\1\1").replace("\0", "\1\2")
    return text


def read(kept: bytes | None) -> str:
    """A text that was kept; nothing where there is none."""
    text = (kept or b"").decode()
    if "\1" in text:
        return "\1".join(part.replace("\1\2", "\0") for part in text.split("\1\1"))
    return text
