"""One program under stress: threads, tasks, forks, signals and the collector, all on one store.

    python program.py URL FOLDER SECONDS SEED

Every acknowledged add, every handled key and every count is one line of a file in the folder, written by one call at
the end of the file, so that the lines of all processes (children that are killed, too) survive and don't mix:

    added KEY               an `add` returned
    handled KEY             a handler was called with it
    count NAME NUMBER       how often something happened in one process

A thread that makes no progress for `STUCK` seconds ends the program with exit code 3, after its stacks were printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import abate
from abate import observe
from abate.stores import Queue, StoreError, open_store

STUCK = 60.0
"""Seconds without progress after which a thread hangs."""
LEASE = 5.0
"""Seconds of a message's lease: shorter than the pauses of consumers that are stopped (SIGSTOP)."""
CHILD = 40.0
"""Seconds that a forked child may take; it has a second's work."""
RATIO, RESERVE = 0.2, 5.0


class Log:
    """Lines of one process."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.counts: Counter[str] = Counter()

    def write(self, *words: object) -> None:
        """Append one line, in one call."""
        os.write(self.file, (" ".join(map(str, words)) + "\n").encode())

    def flush(self) -> None:
        """Write the counts of this process, once."""
        counts, self.counts = self.counts, Counter()
        for name, number in sorted(counts.items()):
            self.write("count", name, number)


class Program:
    """Everything that one process does at once."""

    def __init__(self, url: str, folder: Path, seconds: float, seed: int) -> None:
        self.end = time.monotonic() + seconds
        self.seed = seed
        self.log = Log(folder / "log")
        self.in_memory = url == "memory:"
        store = open_store(url)
        self.queue: Queue = store.queue("work", lease=LEASE)
        self.permits = abate.ConcurrencyLimit(40)
        self.bucket = store.bucket("rate", rate=5000.0, burst=50)
        self.paid = abate.Policy(
            name="paid",
            on=ConnectionError,
            max_attempts=3,
            backoff=abate.Backoff(0.0005, 0.005),
            budget=store.budget("calls", ratio=RATIO, reserve=RESERVE),
            gate=self.permits & self.bucket,
        )
        self.sheltered = abate.Policy(
            name="sheltered",
            on=ConnectionError,
            max_attempts=3,
            timeout=2.0,
            backoff=abate.Backoff(0.0005, 0.005),
            shelter=store.shelter("dependency", patience=1.0),
        )
        self.progress: dict[str, float] = {}
        self.numbers = iter(range(10**12))
        self.process = f"{seed}-{os.getpid()}"

    # -- what is done

    def add(self) -> None:
        """Add a key of its own, and note it once it is acknowledged."""
        key = f"{self.process}-{next(self.numbers)}"
        try:
            self.queue.add(key, "x" * 100)
        except StoreError as error:  # it may be there or not: the add was not confirmed
            self.log.counts["adds refused"] += 1
            self.log.write("refused", str(error).replace("\n", " "))
        else:
            self.log.write("added", key)

    def call(self, rng: random.Random) -> None:
        """Make one call that may fail, be refused or take a little."""
        policy = self.paid if rng.random() < 0.7 else self.sheltered
        counts = self.log.counts

        def flaky() -> None:
            counts["attempts"] += 1
            if rng.random() < 0.05:
                time.sleep(rng.random() * 0.002)
            if rng.random() < 0.3:
                raise ConnectionError

        try:
            policy.call(flaky)
        except (ConnectionError, abate.Refused, TimeoutError):
            counts["calls failed"] += 1
        else:
            counts["calls done"] += 1

    async def acall(self, rng: random.Random) -> None:
        """Make one call in a task."""
        policy = self.paid if rng.random() < 0.7 else self.sheltered

        async def flaky() -> None:
            await asyncio.sleep(rng.random() * 0.002)
            if rng.random() < 0.5:
                raise ConnectionError

        with contextlib.suppress(ConnectionError, abate.Refused, TimeoutError):
            await policy.acall(flaky)
        self.log.counts["tasks ended"] += 1

    # -- threads

    def threads(self) -> list[threading.Thread]:
        """All but the main one."""
        works: dict[str, Callable[[random.Random], object]] = {
            "producer 1": lambda rng: (self.add(), time.sleep(rng.random() * 0.02)),
            "producer 2": lambda rng: (self.add(), time.sleep(rng.random() * 0.02)),
            "caller 1": lambda rng: (self.call(rng), time.sleep(rng.random() * 0.002)),
            "caller 2": lambda rng: (self.call(rng), time.sleep(rng.random() * 0.002)),
            "tasks": self.a_loop,
            "scraper": lambda rng: (self.look(), time.sleep(rng.random() * 0.1)),
        }
        started = [threading.Thread(target=self.repeat, args=(name, work), name=name) for name, work in works.items()]
        started.append(threading.Thread(target=self.watch, name="watchdog", daemon=True))
        for thread in started:
            thread.start()
        return started[:-1]

    def repeat(self, name: str, work: Callable[[random.Random], object]) -> None:
        """Work again and again, and note that there is progress."""
        rng = random.Random(f"{self.seed} {name}")
        while time.monotonic() < self.end:
            self.progress[name] = time.monotonic()
            work(rng)
        self.progress.pop(name, None)

    def a_loop(self, rng: random.Random) -> None:
        """Run an event loop for a moment, and leave it as programs do: closed, emptied, or just dropped."""
        loop = asyncio.new_event_loop()
        tasks: list[asyncio.Task[None]] = []
        for _ in range(rng.randrange(1, 20)):
            tasks.append(loop.create_task(self.acall(rng)))
            if rng.random() < 0.3:
                tasks.append(loop.create_task(self.bucket.aacquire(rng.randrange(1, 5))))
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # dropping them is the point
        loop.run_until_complete(asyncio.sleep(rng.random() * 0.01))
        for task in tasks:
            if rng.random() < 0.5:
                task.cancel()
        ending = rng.randrange(3)
        if ending == 0:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        if ending < 2:
            loop.close()
        else:
            loop._selector.close()  # type: ignore[attr-defined]  # an abandoned loop, but not its descriptors
            loop._ssock.close(), loop._csock.close()  # type: ignore[attr-defined]
            loop._closed = True  # type: ignore[attr-defined]
        self.log.counts["loops"] += 1

    def look(self) -> None:
        """Look at everything, as a scrape does."""
        self.paid.budget.balance()
        self.bucket.try_acquire()
        with contextlib.suppress(StoreError):
            self.queue.depth()
        observe.snapshot()
        self.log.counts["looks"] += 1

    def watch(self) -> None:
        """End the program when a thread hangs."""
        while True:
            time.sleep(1.0)
            now = time.monotonic()
            late = [name for name, at in list(self.progress.items()) if now - at > STUCK]
            if late:
                print(f"hangs: {late}", file=sys.stderr, flush=True)
                faulthandler.dump_traceback(all_threads=True)
                os._exit(3)

    # -- the main thread: signals, the collector, forks

    def signalled(self, *_: object) -> None:
        """What a program's signal handler may do: calls, adds, looks."""
        self.log.counts["signals"] += 1
        rng = random.Random()
        self.call(rng)
        if rng.random() < 0.2:
            self.add()
        self.paid.budget.balance()
        signal.setitimer(signal.ITIMER_REAL, 0.001 + rng.random() * 0.02)

    def main(self) -> None:
        """Interrupt, collect and fork at random, until the time is over."""
        rng = random.Random(self.seed)
        threads = self.threads()
        signal.signal(signal.SIGALRM, self.signalled)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        last, children = time.monotonic(), set[int]()
        while time.monotonic() < self.end:
            self.progress["main"] = time.monotonic()
            self.call(rng)
            if rng.random() < 0.1:
                self.add()
            if rng.random() < 0.02:
                gc.set_threshold(rng.choice((1, 5, 50, 700)))
            if rng.random() < 0.01:
                gc.collect()
                self.log.counts["collections"] += 1
            if time.monotonic() > last + 0.5:
                last = time.monotonic()
                children.add(self.fork(rng))
                children = {pid for pid in children if os.waitpid(pid, os.WNOHANG)[0] == 0}
        self.progress.pop("main", None)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        gc.set_threshold(700, 10, 10)
        for thread in threads:
            thread.join(STUCK)
            if thread.is_alive():
                faulthandler.dump_traceback(all_threads=True)
                os._exit(3)
        for pid in children:
            self.reap(pid)
        self.settle(rng)
        self.log.counts["permits leaked"] += self.permits.held
        self.log.counts["threads left"] += threading.active_count()
        self.log.counts["descriptors left"] += len(os.listdir("/proc/self/fd"))
        self.log.flush()

    def settle(self, rng: random.Random) -> None:
        """Let the shelter notice that the loops it waits for are gone, and the collector what these held."""
        end = time.monotonic() + 10.0
        while self.permits.held and time.monotonic() < end:
            self.call(rng)
            gc.collect()
            time.sleep(0.05)

    def fork(self, rng: random.Random) -> int:
        """Fork a child that works for a moment, forks again perhaps, and ends in one of the ways there are."""
        ending, again, seed = rng.choice(("exit", "_exit", "kill")), rng.random() < 0.2, rng.random()
        pid = os.fork()
        if pid:
            self.log.counts["forks"] += 1
            return pid
        try:
            rng = random.Random(seed)
            self.log.counts.clear()
            self.process = f"{self.process}-{os.getpid()}"
            self.progress.clear()
            for _ in range(rng.randrange(1, 60)):
                self.call(rng)
                if not self.in_memory:
                    self.add()
            self.a_loop(rng)
            if again:
                self.reap(self.fork(rng))
            self.log.flush()
            if ending == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        except SystemExit:  # of a child's child
            raise
        except BaseException as error:
            self.log.write("broken", f"child {error!r}".replace("\n", " "))
            os._exit(4)
        if ending == "exit" and threading.main_thread() is threading.current_thread():
            sys.exit(0)
        os._exit(0)

    def reap(self, pid: int) -> None:
        """Wait for a child, and say so if it hung."""
        end = time.monotonic() + CHILD
        while time.monotonic() < end:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                if os.waitstatus_to_exitcode(status) not in (0, -signal.SIGKILL):
                    self.log.write("broken", f"a child ended with {status}")
                return
            time.sleep(0.05)
        self.log.write("broken", f"child {pid} hangs")
        os.kill(pid, signal.SIGABRT)  # faulthandler prints where
        os.waitpid(pid, 0)


def main(url: str, folder: str, seconds: str, seed: str) -> None:
    """Run one program."""
    faulthandler.enable()
    program = Program(url, Path(folder), float(seconds), int(seed))
    if url == "memory:":
        consume(program)
    else:
        program.main()


def consume(program: Program) -> None:
    """A queue in memory has its consumer in the same process, which then works off what is left."""

    @abate.consumer(source=program.queue, workers=4, name="work")
    def handle(message: abate.work.Message) -> None:
        program.log.write("handled", message.key)

    consuming = threading.Thread(target=handle.run, name="consumer")
    consuming.start()
    program.main()
    handle.stop()
    consuming.join(STUCK)
    handle.run(drain=True)
    depth = program.queue.depth()
    program.log.write("count", "buried", depth.dead)


if __name__ == "__main__":
    main(*sys.argv[1:])
