"""Server-sent events that survive the connection: for httpx, httpx2 and aiohttp, by the WHATWG's rules.

The stream is reconnected when it breaks, falls silent or ends, with ``Last-Event-ID``, as often as the policy allows:

* an event that was handed out is a success: attempts count from there, so that a stream that goes on delivering may be
  reconnected for ever, within the policy's budget. `timeout` bounds the time until the first event, and after a break
  until the next one; comments don't extend it. While a stream is open, comments keep it so;
* the delay is the policy's, and never shorter than the last ``retry:`` of the server, which counts as its hint;
* events that were received but not read when a connection broke may be lost with it (in aiohttp): a server that sends
  IDs sends them again;
* 204 ends the stream, as does a policy that gives up. A status of 4xx, any other content type and an event that is too
  large are errors, and so is a body that is encoded twice. A stream that is still there but ends without events fails
  the attempt: `StreamEnded`;
* a response that a client of abate's below has retried and given up on is not retried again: one layer retries.

The parser is in `abate.clients.sse_parser`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, overload

from abate.call.policy import Policy
from abate.call.stream import wrap_async_generator, wrap_generator
from abate.clients.httpx_bodies import bound_decoding, cut_off, split_pieces
from abate.clients.sse_parser import MAX_EVENT, EventParser, EventTooLarge, ServerSentEvent
from abate.clock import MACHINE
from abate.decide import http
from abate.decide.outcome import FATAL, Outcome, Ruling
from abate.decide.rules import Rule, Rules
from abate.errors import AbateError, number, whole
from abate.redact import one_line, short_repr
from abate.schedule.deadlines import cut_to_deadline, deadline_passed

if TYPE_CHECKING:
    import aiohttp
    import httpx
    import httpx2

__all__ = ["EventTooLarge", "NotAnEventStream", "ServerSentEvent", "StreamEnded", "events"]

IDLE = 60.0
MEDIA_TYPE = "text/event-stream"
SLICE = 16_384
"""How many bytes are parsed before the deadline is checked and other tasks have a turn: a few milliseconds of lines."""


class StreamEnded(AbateError, ConnectionError):
    """The server ended the stream: worth another attempt, unless the attempts have run out.

    >>> issubclass(StreamEnded, ConnectionError)
    True
    """


class NotAnEventStream(AbateError):
    """The response is of another content type or status: another attempt would get the same.

    >>> issubclass(NotAnEventStream, AbateError)
    True
    """


_default_policy = Policy(on=http.transient, name="sse")


class Position:
    """Where a stream is to be continued, and when at the earliest."""

    def __init__(self, last_id: str, max_event: int) -> None:
        self.last_id = last_id
        self._max_event = max_event
        self._parser = EventParser()

    @property
    def retry(self) -> int | None:
        """The milliseconds of the last ``retry:``, of this connection or one before."""
        return self._parser.retry

    def begin(self) -> None:
        """A connection begins: what the last one left unfinished is dropped."""
        retry = self.retry
        self._parser = EventParser(max_event=self._max_event, last_id=self.last_id)
        self._parser.retry = retry

    def read(self, piece: bytes) -> Iterator[ServerSentEvent]:
        """Return the events of a piece; this position is after them when all were handed out."""
        yield from self._parser.feed(piece)
        self.last_id = self._parser.last_id


class OnEventStream(Rule):
    """Judge the failures of one stream: by the policy's own rules, and no earlier than the server has asked for."""

    rules: Rules
    position: Position
    safe: bool

    @property
    def reads_results(self) -> bool:  # type: ignore[override]
        return self.rules.reads_results

    def judge(self, outcome: Outcome) -> Ruling | None:
        ruling = self._ruling(outcome)
        if ruling is None or not ruling.retry or self.position.retry is None:
            return ruling
        hint = max(self.position.retry / 1000, ruling.hint or 0.0)
        return Ruling(True, ruling.reason, hint, ruling.reached, ruling.safe, ruling.answered)

    def _ruling(self, outcome: Outcome) -> Ruling | None:
        error = outcome.error
        if isinstance(error, NotAnEventStream | EventTooLarge):
            return FATAL
        if isinstance(error, StreamEnded):
            return Ruling(True, "blip", safe=self.safe, answered=True)
        return self.rules.judge(outcome)


@overload
def events(
    client: httpx.Client | httpx2.Client,
    method: str,
    url: str,
    *,
    policy: Policy | None = None,
    idle: float | None = IDLE,
    max_event: int = MAX_EVENT,
    last_event_id: str = "",
    **request: Any,
) -> Generator[ServerSentEvent]: ...
@overload
def events(
    client: httpx.AsyncClient | httpx2.AsyncClient | aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    policy: Policy | None = None,
    idle: float | None = IDLE,
    max_event: int = MAX_EVENT,
    last_event_id: str = "",
    **request: Any,
) -> AsyncGenerator[ServerSentEvent]: ...
def events(
    client: Any,
    method: str,
    url: str,
    *,
    policy: Policy | None = None,
    idle: float | None = IDLE,
    max_event: int = MAX_EVENT,
    last_event_id: str = "",
    **request: Any,
) -> Any:
    r"""Return a generator of the events of a stream; an async one for async clients.

    * `policy`: by default one named ``sse``, by HTTP's table.
    * `idle`: seconds of silence, in which not even a comment comes, after which the connection counts as dead; None
      waits for ever. It replaces the client's own timeout for reads. In threads the policy's `timeout` bounds it.
    * `max_event`: the most bytes of one event.
    * `last_event_id`: where to begin: the `id` of the last event that was seen before.
    * `request`: what the client's own method takes: ``headers``, ``params``, ``json``, …

    Close the generator if you do not read to its end (``contextlib.closing``, ``aclosing``).

    >>> import abate.clients.sse, httpx
    >>> server = httpx.MockTransport(
    ...     lambda request: httpx.Response(204)
    ...     if "Last-Event-ID" in request.headers
    ...     else httpx.Response(200, headers={"Content-Type": "text/event-stream"}, text="id: 1\ndata: hello\n\n")
    ... )
    >>> policy = abate.Policy(on=abate.http.transient, backoff=[0.0])
    >>> with httpx.Client(transport=server) as client:
    ...     for event in abate.clients.sse.events(client, "GET", "http://news.example/", policy=policy):
    ...         print(event.id, event.data)
    1 hello
    """
    policy = _default_policy if policy is None else policy
    if not isinstance(policy, Policy):
        raise TypeError(f"policy must be a Policy, not {short_repr(policy)}")
    if policy.resume is not None or policy.content is not None:
        raise TypeError("policy must have neither resume nor content: events are resumed by their ID")
    if "timeout" in request:
        raise TypeError("timeout= would end the stream: write idle= for silence, and policy=Policy(timeout=...)")
    bound = None if idle is None else number("idle", idle, above=0)
    if not isinstance(last_event_id, str):
        raise TypeError(f"last_event_id must be a string, not {short_repr(last_event_id)}")
    wrap, read = _reader(client)
    position = Position(last_event_id, whole("max_event", max_event, least=1))
    headers = request.get("headers") or {}  # a mapping, or pairs
    rule = OnEventStream(policy.rules, position, http.repeatable(method, dict(headers)))
    # position holds where to resume, so that there is nothing to change in the arguments
    reading = policy.replace(on=rule, unless=(), resume=lambda last: {})
    return wrap(reading, read)(client, method, url, position, bound, request)


def _read_httpx(
    client: Any, method: str, url: str, position: Position, idle: float | None, request: dict[str, Any]
) -> Generator[ServerSentEvent]:
    # in threads nothing else keeps the deadline
    request = _httpx_request(client, position, cut_to_deadline(idle), request)
    with client.stream(method, url, **request) as response:
        if _is_over(response.status_code, response.headers, response.raise_for_status):
            return
        library = _prepare(client, response)
        position.begin()
        for piece in response.iter_bytes():
            for part in split_pieces(piece, SLICE):
                yield from position.read(part)
                if deadline_passed():  # comments are no silence
                    raise library.ReadTimeout("the deadline passed before an event came", request=response.request)
    raise _ended(url)


async def _aread_httpx(
    client: Any, method: str, url: str, position: Position, idle: float | None, request: dict[str, Any]
) -> AsyncGenerator[ServerSentEvent]:
    request = _httpx_request(client, position, idle, request)
    async with client.stream(method, url, **request) as response:
        if _is_over(response.status_code, response.headers, response.raise_for_status):
            return
        _prepare(client, response)
        position.begin()
        pieces, parsed = response.aiter_bytes(), 0
        try:
            async for piece in pieces:
                for part in split_pieces(piece, SLICE):
                    for event in position.read(part):
                        yield event
                    parsed = await _after(parsed + len(part))
        finally:
            await cut_off(pieces)
    raise _ended(url)


async def _read_aiohttp(
    session: Any, method: str, url: str, position: Position, idle: float | None, request: dict[str, Any]
) -> AsyncGenerator[ServerSentEvent]:
    from aiohttp import ClientTimeout
    from multidict import CIMultiDict

    headers = CIMultiDict(request.get("headers") or ())
    _set_headers(headers, position)
    own = session.timeout
    timeout = ClientTimeout(total=None, connect=own.connect, sock_connect=own.sock_connect, sock_read=idle)
    async with session.request(method, url, **{**request, "headers": headers, "timeout": timeout}) as response:
        if _is_over(response.status, response.headers, response.raise_for_status):
            return
        position.begin()
        parsed = 0
        async for piece in response.content.iter_any():
            for part in split_pieces(piece, SLICE):
                for event in position.read(part):
                    yield event
                parsed = await _after(parsed + len(part))
    raise _ended(url)


async def _after(parsed: int) -> int:
    """Give other tasks a turn, and deadlines a chance, once `SLICE` bytes are parsed; return how many count on."""
    if parsed < SLICE:
        return parsed
    await MACHINE.asleep(0.0)
    return 0


def _prepare(client: Any, response: Any) -> Any:
    """Bound what is decoded at once; return the client's library."""
    library = sys.modules[_kind_of(client)[0]]
    if not bound_decoding(library, response):
        raise NotAnEventStream("the response is encoded more than once")
    return library


def _httpx_request(client: Any, position: Position, idle: float | None, request: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of one request: the read timeout bounds the silence."""
    own = client.timeout
    headers = type(client.headers)(request.get("headers"), encoding="utf-8")
    _set_headers(headers, position)
    timeout = type(own)(connect=own.connect, write=own.write, pool=own.pool, read=idle)
    return {**request, "headers": headers, "timeout": timeout}


def _set_headers(headers: Any, position: Position) -> None:
    headers.setdefault("Accept", MEDIA_TYPE)
    headers.setdefault("Cache-Control", "no-store")
    last_id = position.last_id.strip(" \t")  # as browsers do: h11 refuses a value with spaces around it
    if last_id:
        headers["Last-Event-ID"] = last_id


def _is_over(status: int, headers: Mapping[str, str], raise_for_status: Callable[[], object]) -> bool:
    """Return whether the server says that there is nothing more; raise an error unless the response is a stream."""
    if status == 204:
        return True
    raise_for_status()
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if status != 200 or kind != MEDIA_TYPE:
        raise NotAnEventStream(f"the response is {one_line(kind) or 'untyped'} with status {status}, not {MEDIA_TYPE}")
    return False


def _ended(url: object) -> StreamEnded:
    return StreamEnded(f"the server ended the stream of {one_line(str(url))}")


READERS: dict[tuple[str, str], tuple[Any, Any]] = {
    ("httpx", "Client"): (wrap_generator, _read_httpx),
    ("httpx2", "Client"): (wrap_generator, _read_httpx),
    ("httpx", "AsyncClient"): (wrap_async_generator, _aread_httpx),
    ("httpx2", "AsyncClient"): (wrap_async_generator, _aread_httpx),
    ("aiohttp", "ClientSession"): (wrap_async_generator, _read_aiohttp),
}


def _reader(client: object) -> tuple[Any, Any]:
    return READERS[_kind_of(client)]


def _kind_of(client: object) -> tuple[str, str]:
    """Return the library and the name of a client's class, which may be a subclass."""
    for base in type(client).__mro__:
        kind = base.__module__.partition(".")[0], base.__name__
        if kind in READERS:
            return kind
    raise TypeError(
        "client must be a Client or AsyncClient of httpx or httpx2, or a ClientSession of aiohttp, not"
        f" {short_repr(client)}"
    )
