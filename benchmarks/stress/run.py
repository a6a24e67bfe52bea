"""Ten minutes of threads, tasks, forks, signals and the collector at random points, on every store.

    make stress
    python benchmarks/stress/run.py [--seconds 600] [--seed N] [--store sqlite]

Two programs (see program.py) share a store with two consumers, one of which is killed (SIGKILL) or stopped for longer
than its lease (SIGSTOP) every second. Afterwards the queue is worked off, and the logs say what became of each key:

* lost: acknowledged, and never handled, nor in the queue, nor in the dead letters;
* again: handled more than once (at least once is the promise);
* hung: programs or children that made no progress.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from abate.stores import open_store
from benchmarks.stress.program import LEASE, STUCK
from tests.clients.databases.servers import start_postgres
from tests.clients.valkey_server import Valkey

HERE = Path(__file__).parent
STORES = ("memory", "sqlite", "redis", "postgres")
PROGRAMS = 2
SHOWN = ("added", "handled", "again", "lost", "buried", "broken", "hung", "kills", "stops", "forks", "signals", "loops")


class Run:
    """One store under stress."""

    def __init__(self, url: str, folder: Path, seconds: float, seed: int) -> None:
        self.url, self.folder, self.seconds = url, folder, seconds
        self.rng = random.Random(seed)
        self.found: Counter[str] = Counter()

    def go(self) -> None:
        """Run the programs beside consumers that come and go, and judge what they leave."""
        programs = [
            self.start("program.py", str(self.seconds), str(self.rng.randrange(10**6)))
            for _ in range(1 if self.url == "memory:" else PROGRAMS)
        ]
        consumers = [] if self.url == "memory:" else [self.start("consumer.py") for _ in range(2)]
        end = time.monotonic() + self.seconds + 2 * STUCK
        try:
            while any(program.poll() is None for program in programs) and time.monotonic() < end:
                time.sleep(self.rng.uniform(0.5, 1.5))
                if consumers:
                    self.disturb(consumers)
        finally:
            for process in (*programs, *consumers):
                hung = process.poll() is None and process in programs
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with children that it has left
                self.found["hung"] += hung or process.wait() == 3
        for program in programs:
            if program.returncode not in (0, 3):
                self.found["broken"] += 1
                print(f"a program on {self.url} ended with {program.returncode}", file=sys.stderr)
        self.judge()

    def start(self, script: str, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(HERE / script), self.url, str(self.folder), *words]
        return subprocess.Popen(command, start_new_session=True)

    def disturb(self, consumers: list[subprocess.Popen[bytes]]) -> None:
        """Kill one consumer, or have it stand still for longer than its lease."""
        place = self.rng.randrange(len(consumers))
        if self.rng.random() < 0.8:
            consumers[place].kill()
            consumers[place].wait()
            consumers[place] = self.start("consumer.py")
            self.found["kills"] += 1
        else:
            consumers[place].send_signal(signal.SIGSTOP)
            try:
                time.sleep(1.2 * LEASE)
            finally:
                consumers[place].send_signal(signal.SIGCONT)
            self.found["stops"] += 1

    def judge(self) -> None:
        """Work off what is left, and compare what was added with what was handled."""
        added, handled = set[str](), Counter[str]()
        left = self.leave() if self.url != "memory:" else set()
        for line in (self.folder / "log").read_text().splitlines():
            what, *words = line.split(" ")
            if what == "added":
                added.add(words[0])
            elif what == "handled":
                handled[words[0]] += 1
            elif what == "count":
                self.found[" ".join(words[:-1])] += int(words[-1])
            else:
                self.found[what] += 1
                if what == "broken" or self.found[what] < 5:
                    print(f"{self.url}: {line}", file=sys.stderr)
        self.found["added"] = len(added)
        self.found["handled"] = len(handled)
        self.found["again"] = sum(number - 1 for number in handled.values())
        self.found["lost"] = len(added - set(handled) - left)
        if self.url.startswith("sqlite:"):
            (told,) = sqlite3.connect(self.folder / "work.db").execute("PRAGMA integrity_check").fetchone()
            self.found["broken"] += told != "ok"

    def leave(self) -> set[str]:
        """What is still in the queue when the consumers have had time: nothing, but for dead letters."""
        end, left = time.monotonic() + 10 * LEASE, set[str]()
        with open_store(self.url) as store:
            queue = store.queue("work", lease=LEASE)
            while (depth := queue.depth()).waiting + depth.leased and time.monotonic() < end:
                for message in queue.receive(100, 1.0):
                    queue.done(message)
                    left.add(str(message.key))
            self.found["buried"] = depth.dead
            self.found["left"] = depth.waiting + depth.leased
            return left | {str(letter.key) for letter in queue.dead()}

    @property
    def kept(self) -> bool:
        """Did everything hold?"""
        return not any(self.found[what] for what in ("lost", "hung", "broken", "buried", "left", "permits leaked"))


@contextmanager
def empty(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty store of that kind, with its server running in a folder of its own, where it logs."""
    server = folder / "server"
    server.mkdir()
    if kind == "memory":
        yield "memory:"
    elif kind == "sqlite":
        yield f"sqlite:///{folder}/work.db"
    elif kind == "redis":
        valkey = Valkey(str(server)).start()
        try:
            yield f"{valkey.url}/0"
        finally:
            valkey.kill()
    else:
        postgres = start_postgres(server)
        try:
            yield f"postgresql://postgres@127.0.0.1:{postgres.port}/postgres"
        finally:
            postgres.stop(signal.SIGINT)


def main() -> int:
    """Stress each store in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="for all stores together")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--store", choices=STORES, action="append")
    words = parser.parse_args()
    chosen = words.store or STORES
    each = words.seconds / len(chosen)
    print(f"Python {sys.version.split()[0]}, seed {words.seed}, {each:.0f} s for each store\n", flush=True)
    print("| store | " + " | ".join(SHOWN) + " | |\n|---|" + "---:|" * len(SHOWN) + "---|", flush=True)
    held = True
    with tempfile.TemporaryDirectory(prefix="abate-stress-") as name:
        for kind in chosen:
            folder = Path(name) / kind
            folder.mkdir()
            with empty(kind, folder) as url:
                run = Run(url, folder, each, words.seed)
                run.go()
            held = held and run.kept
            numbers = " | ".join(f"{run.found[what]:,}" for what in SHOWN)
            print(f"| {kind} | {numbers} | {'kept' if run.kept else 'BROKEN'} |", flush=True)
            print(f"{kind}: {dict(sorted(run.found.items()))}", file=sys.stderr, flush=True)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
