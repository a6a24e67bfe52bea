"""Wake threads that wait for a message in PostgreSQL, by LISTEN and by polling.

While threads wait, one listener thread per process receives notifications on a connection of its own (LISTEN). A queue
for which threads wait is announced in the database for `ANNOUNCE_SECONDS` at a time, so that an add notifies only if a
process listens.

A waiting thread also polls: when the next message is due, and about every `POLL_LISTENING` seconds. While no listener
runs (the connection was lost, or a pooler such as PgBouncer hides notifications), it polls about every `POLL_DEAF`
seconds, and starts the listener again from time to time. The listener ends when no thread has waited for `IDLE`
seconds, since a listening connection has to be read.
"""

from __future__ import annotations

import os
import random
import selectors
from threading import Thread
from time import monotonic

from abate import forks
from abate.logs import Log
from abate.reentrant_locks import Section
from abate.schedule.backoff import RandomSource
from abate.stores.errors import StoreError
from abate.stores.message_waits import QueueWaiter, WaitList, Wakeups
from abate.stores.postgres.pool import Pool
from abate.stores.postgres.session import Session, SessionError

log = Log("abate.stores")

ANNOUNCE_SECONDS = 30.0
POLL_LISTENING, POLL_DEAF = 5.0, 0.5
POLL_CONTENDED = 0.02
"""Seconds between two polls while other clients hold the locks of the ready messages."""
IDLE = 60.0
KEEPALIVE = 10.0
"""Seconds without a notification after which the connection is checked."""
RECONNECT = 2.0
"""Seconds between two starts of the listener, give or take half."""
ALL = 10**6
"""More threads than can wait: wakes all of them."""


class ListeningWaiter(QueueWaiter):
    """One call that waits for a message, woken by the listener or by a poll."""

    __slots__ = ("_listener", "_queue")

    def __init__(self, wakeups: Wakeups, wait_list: WaitList, listener: Listener, queue: str) -> None:
        super().__init__(wakeups, wait_list)
        self._listener = listener
        self._queue = queue

    def wait(self, seconds: float) -> None:
        if not self._listener.announce(self._queue):
            super().wait(self._listener.poll_interval(seconds))


class Listener:
    """Receives notifications for the waiting threads of this process, and wakes them."""

    def __init__(self, pool: Pool, wakeups: Wakeups, rng: RandomSource = random) -> None:
        self._pool = pool
        self._wakeups = wakeups
        self._rng = rng
        self._section = Section()
        self.after_fork()
        forks.register(self)

    def after_fork(self) -> None:
        """Start without a listener: its thread does not exist in the child."""
        self._section.after_fork()
        self._thread: Thread | None = None
        self._stop_pipe = -1  # a byte written here ends the thread
        self._announced: dict[str, float] = {}
        self._wanted = monotonic()
        self._try_at = 0.0
        self._closed = False
        self.listening = False
        self.behind_pooler = False
        """Whether a pooler hides notifications."""

    # -- for waiting threads

    def announce(self, queue: str) -> bool:
        """Announce that a thread waits for this queue. Return whether adds before this call may have been missed."""
        self._wanted = monotonic()
        if not self.listening:
            self._section.run_or_defer(self._start)
            return False
        if self._announced.get(queue, 0.0) >= self._wanted + ANNOUNCE_SECONDS / 3:
            return False
        self._pool.run("SELECT @.listen($1, $2)", queue, repr(ANNOUNCE_SECONDS), safe=True)
        self._announced[queue] = self._wanted + ANNOUNCE_SECONDS
        return True

    def poll_interval(self, pause: float) -> float:
        """Return the seconds until a waiting thread polls; the next message is due in `pause` seconds."""
        chance = 0.5 + self._rng.random()
        return max(
            min(pause, (POLL_LISTENING if self.listening else POLL_DEAF) * chance),
            POLL_CONTENDED * chance if pause <= 0 else 0.0,
        )

    def close(self) -> None:
        """End the listener thread."""
        self._closed = True
        self._section.run_or_defer(self._signal_end)
        thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join(self._pool.address.timeout)

    def _signal_end(self) -> None:
        if self._thread is not None:
            os.write(self._stop_pipe, b".")

    # -- the thread

    def _start(self) -> None:
        if self._thread is not None or self.behind_pooler or self._closed or monotonic() < self._try_at:
            return
        self._try_at = monotonic() + RECONNECT * (0.5 + self._rng.random())
        reading, self._stop_pipe = os.pipe()
        self._thread = Thread(target=self._listen, args=(reading,), name="abate-listener", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no thread can be started: waiting threads poll, and try again
            self._end(reading)

    def _listen(self, reading: int) -> None:
        session = None
        try:
            session = self._connected()
            if session is not None:
                self._receive_notifications(session, reading)
        except (SessionError, StoreError) as error:
            log.debug("%s: can't listen for notifications: %r", self._pool.address, error)
        finally:
            self.listening = False
            if session is not None:
                session.close()
            self._section.run_or_defer(self._end, reading)
            self._wakeups.wake_all()  # waiting threads have to poll now

    def _end(self, reading: int) -> None:
        self._announced.clear()
        self._thread = None
        os.close(reading)
        os.close(self._stop_pipe)

    def _connected(self) -> Session | None:
        """Open a connection that listens; None if a pooler may run each statement on another connection."""
        limit = self._pool.address.timeout
        session = self._pool.connect(monotonic() + limit)
        ((process,),) = session.run("SELECT pg_backend_pid()", (), monotonic() + limit)
        if int(process or 0) != session.process:
            self.behind_pooler = True
            session.close()
            return None
        session.run(f'LISTEN "{self._pool.address.schema}"', (), monotonic() + limit)
        return session

    def _receive_notifications(self, session: Session, reading: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(session.fileno(), selectors.EVENT_READ)
            selector.register(reading, selectors.EVENT_READ)
            self.listening = True
            self._wakeups.wake_all()  # messages added before may have been missed
            while monotonic() < self._wanted + IDLE:
                ready = [key.fd for key, _ in selector.select(KEEPALIVE)]
                if reading in ready:
                    return
                if not ready:
                    session.run("SELECT 1", (), monotonic() + self._pool.address.timeout)
                for queue in set(session.notifications()):
                    self._wakeups.wake_queue(queue, ALL)
