"""Work that waits its turn: queues of keys, for threads and for tasks.

A key says that something wants attention, not what has changed: the worker looks for itself. The guarantees:

* **Coalescing**: a key waits at most once, however often it is added.
* **One at a time**: a key is never in the hands of two workers. One that is added meanwhile comes back once, after
  `done`.
* **Fair**: in the order in which they were added; a higher priority goes first, but one of eight turns is for the
  oldest, whatever its priority: a key with n before it goes within 8 (n + 1) turns. Priorities are whole numbers from
  0.
* **Stingy**: a key that fails comes back by its own backoff with jitter, and all together at no more than a rate. An
  add makes a key ready that waits for its time; of two delays the earlier counts.
* **Bounded**: full means `QueueFull`, or waiting, as asked. Failures are counted for a bounded number of keys.
* **Nothing is lost**: `shutdown` delivers what is ready, and what comes back from a worker's hand; what was to come
  later is dropped. `drain` waits for what is in hand.

There is no background thread: those who wait for a key look after the time.
"""

from abate.work.answers import Again, PermanentFailure, Recoverable, SilentSuccess
from abate.work.fuse import Fuse
from abate.work.keys import KeyQueue, QueueFull
from abate.work.lines import ShutDown
from abate.work.queue import AsyncWorkQueue, WorkQueue
from abate.work.source import Back, Bury, Done, LeaseLost, Message, Source

__all__ = [
    "Again",
    "AsyncWorkQueue",
    "Back",
    "Bury",
    "Done",
    "Fuse",
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
