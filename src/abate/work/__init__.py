"""Provides key queues for threads and tasks, consumers, and controllers.

A key says that something needs attention; the worker finds out what has changed. The guarantees of a queue:

* **Coalescing**: a key waits at most once, however often it is added.
* **One at a time**: two workers never have the same key. A key that is added while a worker has it comes back once,
  after `done`.
* **Fair**: keys come in the order of their adds. A higher priority goes first, but every eighth take returns the oldest
  key, so a key with n keys before it comes within 8 (n + 1) takes. Priorities are whole numbers from 0.
* **Backoff**: a failed key comes back after its own backoff with jitter, and all failed keys together stay within a
  rate. An add makes a delayed key ready; of two delays the shorter one counts.
* **Bounded**: a full queue raises `QueueFull`, or makes the caller wait. Failures are counted for at most 100,000 keys.
* **No ready key is lost**: `shutdown` delivers the ready keys, and those that workers return; it drops delayed keys.
  `drain` waits for the keys that workers have.

There is no background thread: the threads and tasks that wait for a key also watch for delayed keys to become due.
"""

from abate.work.handler_results import Again, PermanentFailure, Recoverable, SilentSuccess
from abate.work.key_queue import KeyQueue, QueueFull
from abate.work.queue_waiters import ShutDown
from abate.work.source import Back, Bury, Done, LeaseLost, Message, Source
from abate.work.work_queue import AsyncWorkQueue, WorkQueue

__all__ = [
    "Again",
    "AsyncWorkQueue",
    "Back",
    "Bury",
    "Done",
    "KeyQueue",
    "LeaseLost",
    "Message",
    "PermanentFailure",
    "QueueFull",
    "Recoverable",
    "ShutDown",
    "SilentSuccess",
    "Source",
    "WorkQueue",
]


def __dir__() -> list[str]:
    return sorted(__all__)
