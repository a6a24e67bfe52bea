"""Migrates code, and runs code in virtual time as it is written for either library."""

import datetime
import random
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import abate
from abate.migrate.files import SourceFile
from abate.migrate.program import migrate
from abate.testing import VirtualClock

LIBRARIES = ("tenacity", "backoff", "stamina", "retrying", "urllib3")


def migrated(code, libraries=LIBRARIES, **others):
    """Return the result for one file; others are further files of the program, by their name."""
    files = [SourceFile(Path("app.py"), code, "utf-8")]
    files += [SourceFile(Path(f"{name}.py"), text, "utf-8") for name, text in others.items()]
    return next((result for result in migrate(files, libraries) if result.file is files[0]), None)


def rewritten(code, **others):
    """Return the new code of a file of which each site is rewritten."""
    result = migrated(code, **others)
    assert all(site.mapped for site in result.sites), [site.reason for site in result.sites]
    return result.after


def reason(code, **others):
    """Return why the only site of a file is left as it is."""
    result = migrated(code, **others)
    (site,) = result.sites
    assert not site.mapped
    assert result.after == code
    return site.reason


@dataclass
class Run:
    """What a run of some code was: its attempts, its waits, and how it ended."""

    attempts: int = 0
    waits: list = field(default_factory=list)
    end: object = None


class _Now(datetime.datetime):
    """The time for backoff, which counts in datetimes."""

    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time())


def run(code, outcomes, call="target()"):
    """Run code whose `step()` plays outcomes, the last of them for ever, and whose waits take no time."""
    seen = Run()

    def step():
        outcome = outcomes[min(seen.attempts, len(outcomes) - 1)]
        seen.attempts += 1
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    namespace = {"step": step, "__name__": "app"}
    with VirtualClock(start=1e9) as clock, _machine_time(clock), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        random.seed(1)
        exec(compile(code, "app.py", "exec"), namespace)
        try:
            seen.end = "returned", eval(call, namespace)
        except Exception as error:
            seen.end = _ending(error)
        seen.waits = [round(wait, 6) for wait in clock.waits if wait > 0]
    return seen


def _ending(error):
    """Return how a call ended, in words that are the same for both libraries."""
    if isinstance(error, abate.RetryExhausted) or type(error).__name__ == "RetryError":
        return "gave up", repr(error.__cause__)
    return "raised", repr(error)


class _machine_time:
    """Makes the machine's own time that of a virtual clock, for libraries that know no other."""

    def __init__(self, clock):
        self.clock = clock

    def __enter__(self):
        import backoff._sync

        self.kept = time.sleep, time.monotonic, time.time, backoff._sync.datetime
        time.sleep, time.monotonic, time.time = self.clock.sleep, self.clock.now, self.clock.now
        backoff._sync.datetime = type("datetime", (), {"datetime": _Now, "timedelta": datetime.timedelta})

    def __exit__(self, *_):
        import backoff._sync

        time.sleep, time.monotonic, time.time, backoff._sync.datetime = self.kept
