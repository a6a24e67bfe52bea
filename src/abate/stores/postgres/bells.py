"""How those who wait for a message of PostgreSQL are woken.

While somebody waits, one thread of the process listens for all, on a connection of its own (LISTEN): what is added
anywhere rings here. A queue that somebody waits for is announced to the store for `ANNOUNCED` seconds at a time, so
that nothing is notified that nobody hears.

Who waits looks by itself as well: when the next message is due, and every `SLOWLY` seconds or so in any case. While
nobody listens (the connection was lost, or a pooler such as PgBouncer stands between, through which nothing can be
heard) it looks every `QUICKLY` seconds or so, with jitter, and has the thread started anew, now and then. The thread
ends when nobody has waited for `IDLE` seconds: a connection that listens has to be read.
"""

from __future__ import annotations

import os
import random
import selectors
from threading import Thread
from time import monotonic

from abate import forks
from abate.locks import Section
from abate.logs import Log
from abate.schedule.backoff import Uniform
from abate.stores.bells import Bells
from abate.stores.contract import StoreError
from abate.stores.postgres.pool import Pool
from abate.stores.postgres.session import Session, Trouble

log = Log("abate.stores")

ANNOUNCED = 30.0
SLOWLY, QUICKLY = 5.0, 0.5
SOON = 0.02
"""Seconds after which to look again where what is ready is just being taken by somebody else."""
IDLE = 60.0
PULSE = 10.0
"""Seconds after which a connection that has heard nothing is asked whether it is still there."""
AGAIN = 2.0
"""Seconds between two tries to listen, give or take a half."""
EVERYBODY = 10**6


class Ears:
    """Hears for all who wait in one process, and rings their bells."""

    def __init__(self, pool: Pool, bells: Bells, rng: Uniform = random) -> None:
        self._pool = pool
        self._bells = bells
        self._rng = rng
        self._section = Section()
        self.after_fork()
        forks.keep(self)

    def after_fork(self) -> None:
        """Nobody listens in the child."""
        self._section.after_fork()
        self._thread: Thread | None = None
        self._hang_up = -1  # written to when the thread is to end
        self._announced: dict[str, float] = {}
        self._wanted = monotonic()
        self._try_at = 0.0
        self._closed = False
        self.listening = False
        self.deaf = False
        """Does a pooler stand between?"""

    # -- for those who wait

    def attend(self, queue: str) -> bool:
        """Somebody waits for this queue: is it only from now on that what is added to it rings?"""
        self._wanted = monotonic()
        if not self.listening:
            self._section.run(self._start)
            return False
        if self._announced.get(queue, 0.0) >= self._wanted + ANNOUNCED / 3:
            return False
        self._pool.run("SELECT @.listen($1, $2)", queue, repr(ANNOUNCED), safe=True)
        self._announced[queue] = self._wanted + ANNOUNCED
        return True

    def patience(self, pause: float) -> float:
        """Seconds after which one who waits looks by itself; `pause` is when it has a reason to."""
        chance = 0.5 + self._rng.random()
        return max(min(pause, (SLOWLY if self.listening else QUICKLY) * chance), SOON * chance if pause <= 0 else 0.0)

    def close(self) -> None:
        """Listen no more."""
        self._closed = True
        self._section.run(self._tell_to_end)
        thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join(self._pool.address.timeout)

    def _tell_to_end(self) -> None:
        if self._thread is not None:
            os.write(self._hang_up, b".")

    # -- the thread

    def _start(self) -> None:
        if self._thread is not None or self.deaf or self._closed or monotonic() < self._try_at:
            return
        self._try_at = monotonic() + AGAIN * (0.5 + self._rng.random())
        reading, self._hang_up = os.pipe()
        self._thread = Thread(target=self._listen, args=(reading,), name="abate-ears", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # there is no thread to be had: who waits looks by itself, and tries again
            self._end(reading)

    def _listen(self, reading: int) -> None:
        session = None
        try:
            session = self._connected()
            if session is not None:
                self._hear(session, reading)
        except (Trouble, StoreError) as error:
            log.debug("%s can't be listened to: %r", self._pool.address, error)
        finally:
            self.listening = False
            if session is not None:
                session.close()
            self._section.run(self._end, reading)
            self._bells.ring_all()  # from now on they have to look by themselves

    def _end(self, reading: int) -> None:
        self._announced.clear()
        self._thread = None
        os.close(reading)
        os.close(self._hang_up)

    def _connected(self) -> Session | None:
        """A connection that listens; None where a pooler hands each statement to another."""
        limit = self._pool.address.timeout
        session = self._pool.connect(monotonic() + limit)
        ((process,),) = session.run("SELECT pg_backend_pid()", (), monotonic() + limit)
        if int(process or 0) != session.process:
            self.deaf = True
            session.close()
            return None
        session.run(f'LISTEN "{self._pool.address.schema}"', (), monotonic() + limit)
        return session

    def _hear(self, session: Session, reading: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(session.fileno(), selectors.EVENT_READ)
            selector.register(reading, selectors.EVENT_READ)
            self.listening = True
            self._bells.ring_all()  # what came before we listened is to be looked for
            while monotonic() < self._wanted + IDLE:
                ready = [key.fd for key, _ in selector.select(PULSE)]
                if reading in ready:
                    return
                if not ready:
                    session.run("SELECT 1", (), monotonic() + self._pool.address.timeout)
                for queue in set(session.notifications()):
                    self._bells.ring(queue, EVERYBODY)
