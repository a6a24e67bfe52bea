"""The parser of server-sent events, by the WHATWG's rules: bytes go in, in any pieces, and events come out. No I/O.

Memory is bounded: an event, or a line, of more than `max_event` bytes raises `EventTooLarge`. An event without its
blank line at the end of the stream is dropped, as the rules say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from abate.errors import AbateError, whole
from abate.frozen import Frozen

MAX_EVENT = 1_048_576
"""The default limit for one event, in bytes."""
MAX_RETRY_DIGITS = 12
"""A ``retry:`` of more digits (30 years) counts as the largest number of this length: longer than any call waits."""

BOM = b"\xef\xbb\xbf"
LINE_END = re.compile(rb"\r\n|\r|\n")
CR, LF = 0x0D, 0x0A


class ServerSentEvent(Frozen):
    r"""One event: its name, its data, the ID to resume after it, and a ``retry:`` that came with it.

    * `event`: ``"message"`` unless the server names it.
    * `id`: the last ID that the stream has set, with this event or before it; ``""`` for none.
    * `retry`: as the server sent it, in milliseconds; None if there was none with this event.

    >>> parser = EventParser()
    >>> list(parser.feed(b"id: 7\nevent: price\ndata: 42\n\n"))
    [ServerSentEvent(event='price', data='42', id='7', retry=None)]
    """

    event: str = "message"
    data: str = ""
    id: str = ""
    retry: int | None = None


class EventTooLarge(AbateError):
    """An event of a stream was larger than allowed; the stream was given up.

    >>> parser = EventParser(max_event=10)
    >>> list(parser.feed(b"data: more than ten bytes"))
    Traceback (most recent call last):
    abate.clients.sse_parser.EventTooLarge: an event was larger than 10 bytes: raise max_event
    """

    def __init__(self, max_event: int) -> None:
        super().__init__(f"an event was larger than {max_event} bytes: raise max_event")
        self.max_event = max_event

    def __reduce__(self) -> tuple[type[EventTooLarge], tuple[int]]:
        return type(self), (self.max_event,)


class EventParser:
    r"""Parses one stream, which may continue an earlier one: after the event with the ID `last_id`.

    >>> parser = EventParser()
    >>> [event.data for piece in (b"data: a\r", b"\ndata: b\r\n\r\nda", b"ta: lost") for event in parser.feed(piece)]
    ['a\nb']
    """

    __slots__ = (
        "_at_start",
        "_data",
        "_event",
        "_id",
        "_line",
        "_retry",
        "_size",
        "_skip_lf",
        "last_id",
        "max_event",
        "retry",
    )

    def __init__(self, *, max_event: int = MAX_EVENT, last_id: str = "") -> None:
        self.max_event = whole("max_event", max_event, least=1)
        self.last_id = last_id
        """The ID to resume after; set at the end of an event, also of one without data."""
        self.retry: int | None = None
        """The milliseconds of the last ``retry:``, of whatever event."""
        self._line = bytearray()
        """The line that has begun."""
        self._at_start = True
        self._skip_lf = False
        """Whether the last byte was a CR, whose LF may follow."""
        self._data: list[str] = []
        self._size = 0
        """The bytes of `_data`."""
        self._event, self._id = "", last_id
        self._retry: int | None = None

    def feed(self, piece: bytes) -> Iterator[ServerSentEvent]:
        """Return the events that end in this piece. Read them all before the next piece."""
        for line in self._lines(piece):
            if line:
                self._take(line)
                continue
            event = self._end_event()
            if event is not None:
                yield event

    def _lines(self, piece: bytes) -> Iterator[bytes]:
        start = 0
        if self._skip_lf and piece:
            self._skip_lf = False
            start = int(piece[0] == LF)
        for end in LINE_END.finditer(piece, start):
            self._append(piece[start : end.start()])
            start = end.end()
            self._skip_lf = start == len(piece) and piece[-1] == CR
            line = bytes(self._line)
            self._line.clear()
            if self._at_start:
                self._at_start = False
                line = line.removeprefix(BOM)
            yield line
        self._append(piece[start:])

    def _append(self, part: bytes) -> None:
        if self._size + len(self._line) + len(part) > self.max_event:
            raise EventTooLarge(self.max_event)
        self._line += part

    def _take(self, line: bytes) -> None:
        """Take one field; a comment has no name, and an unknown field is ignored."""
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value.decode(errors="replace"))
            self._size += len(value) + 1
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit():
            digits = value.lstrip(b"0") or b"0"
            self.retry = self._retry = int(digits if len(digits) <= MAX_RETRY_DIGITS else b"9" * MAX_RETRY_DIGITS)

    def _end_event(self) -> ServerSentEvent | None:
        """End the event at its blank line; return None if it has no data."""
        self.last_id = self._id
        data, event, retry = self._data, self._event, self._retry
        self._data, self._event, self._retry, self._size = [], "", None, 0
        return ServerSentEvent(event or "message", "\n".join(data), self.last_id, retry) if data else None
