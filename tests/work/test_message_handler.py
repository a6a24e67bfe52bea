"""The deadline of a handler that runs in a thread."""

import asyncio
import threading
from collections import Counter

import pytest

import abate
from abate.clock import MACHINE
from abate.work import Message
from abate.work.message_handler import MessageHandler
from abate.work.run_state import Delivery
from abate.work.thread_pool import DaemonThreadPool


def test_a_handler_thread_keeps_its_deadline_after_its_worker_is_cancelled():
    """A plain handler can't be interrupted, but its calls still see the deadline."""
    begun, go, ended, left = threading.Event(), threading.Event(), threading.Event(), []

    def handle(message):
        begun.set()
        go.wait(60)
        left.append(abate.remaining())
        ended.set()

    async def main():
        handler = MessageHandler("orders", handle, None, 60.0, DaemonThreadPool(1), Counter())
        task = asyncio.create_task(handler._run_with_timeout(Delivery(Message("42")), MACHINE))
        await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    go.set()
    assert ended.wait(60)
    assert left[0] <= 60.0
