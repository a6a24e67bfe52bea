"""Server streams of gRPC whose first message may take several attempts: for channels of `grpc` and of `grpc.aio`."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextvars import copy_context
from itertools import islice
from threading import RLock
from typing import Any

import grpc  # type: ignore[import-untyped]

from abate.call.policy import Policy
from abate.schedule.deadlines import carry_deadline, deadline_aware


class Stream(grpc.Call):  # type: ignore[misc]
    """A server stream. Its status and metadata are those of the attempt that brought the first message."""

    def __init__(self, policy: Policy, send: Callable[[], Any]) -> None:
        self._send_attempt = send
        # any thread may read the stream, with the context and the deadline of the thread that made the call
        self._context = copy_context()
        self._make = carry_deadline(policy.call)
        self._lock = RLock()
        self._opening = self._open = self._cancelled = False
        self._failure: Exception | None = None
        self._first: deque[Any] = deque()
        self._call: Any = None
        self._sent_early: Any = None
        if policy.gate is None and not policy.bounded:
            self._sent_early = self._send()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        self._wait()
        if self._failure is not None:
            raise self._failure
        try:
            return self._first.popleft()
        except IndexError:
            return next(self._call)

    def _wait(self) -> None:
        """Wait for the first message, the end or the error of the stream."""
        for _ in iter(self._lock.acquire, None):  # a signal handler may interrupt a `with` statement before its body
            try:
                if self._opening:
                    raise RuntimeError("a signal handler can't wait for a stream that its own thread is waiting for")
                if not self._open:
                    try:
                        self._opening = True
                        self._context.run(self._make, self._attempt)
                    except Exception as error:
                        self._failure = error
                    finally:
                        self._opening = False
                    self._open = True
            finally:
                self._lock.release()
            break

    @deadline_aware
    def _attempt(self) -> None:
        call, self._sent_early = self._sent_early or self._send(), None
        self._first = deque(islice(call, 1))  # replaces the message of an attempt that a signal handler interrupted

    def _send(self) -> Any:
        self._call = self._send_attempt()
        if self._cancelled:
            self._call.cancel()
        return self._call

    def _final_call(self) -> Any:
        """Return the call of the last attempt; raise the error if no attempt was sent."""
        self._wait()
        if self._call is None:  # nothing was sent
            assert self._failure is not None
            raise self._failure
        return self._call

    def cancel(self) -> bool:
        self._cancelled = True  # before the attempt is read: the next attempt checks this
        return True if self._call is None else bool(self._call.cancel())

    def is_active(self) -> bool:
        return not self._open or bool(self._final_call().is_active())

    def time_remaining(self) -> Any:
        return self._final_call().time_remaining()

    def add_callback(self, callback: Callable[[], None]) -> bool:
        return bool(self._final_call().add_callback(callback))

    def initial_metadata(self) -> Any:
        return self._final_call().initial_metadata()

    def trailing_metadata(self) -> Any:
        return self._final_call().trailing_metadata()

    def code(self) -> Any:
        return self._final_call().code()

    def details(self) -> Any:
        return self._final_call().details()


class Messages:
    """The messages of an asyncio stream whose first message was read already."""

    def __init__(self, first: list[Any], rest: AsyncIterator[Any]) -> None:
        self._first = first
        self._rest = rest

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return self._first.pop() if self._first else await anext(self._rest)
