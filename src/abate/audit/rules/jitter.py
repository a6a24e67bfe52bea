"""Delays that are equal on all hosts: no jitter, jitter lost at the cap, fixed waits, no wait at all."""

from __future__ import annotations

import math
from collections.abc import Iterator

from abate.audit.findings import Spot, rule
from abate.audit.program import Program
from abate.audit.readers.errors import decides
from abate.audit.readers.loop_purposes import is_local, repairs, waits_until_ready
from abate.audit.retries import EVERYTHING, OF_SERVICES, Retries

SPREAD = "@abate.retry(on=…) waits with full jitter from 0.2 s up to 30 s; Backoff(base=…, cap=…) changes the range"


@rule(
    "no-jitter",
    "warning",
    "a retry waits without jitter",
    outage="Callers that failed together retry together: each round hits the service as one peak, and holds it down.",
    abate=SPREAD,
    fixes={
        "": "make the delay random: random.uniform(0, min(cap, base * 2**n))",
        "tenacity": "wait=wait_random_exponential(multiplier=…, max=…), or add wait_random(0, …) to the wait",
        "backoff": "leave jitter at its default (full_jitter)",
        "urllib3": "Retry(backoff_jitter=…), which is lost at backoff_max; below it the delays spread",
        "retrying": "add wait_jitter_max=…, or use wait_random_min and wait_random_max",
        "retry": "pass jitter=(0, …), a range: a number is added to every delay alike",
        "celery": "leave retry_jitter at its default (True)",
        "stamina": "leave wait_jitter at its default (1.0)",
        "abate": "leave jitter at its default (Backoff(jitter='full'))",
        "aiohttp_retry": "use JitterRetry or RandomRetry",
    },
)
def no_jitter(program: Program) -> Iterator[Spot]:
    """Find delays without jitter: those that grow, and any in a plain loop."""
    for retries in program.retries:
        wait = retries.wait
        if _waits_equally(retries) and (wait.grows or retries.library == "loop"):
            yield program.spot(
                retries.node,
                retries.function,
                (
                    f"{retries.label} waits {describe(retries)} without jitter: callers that "
                    "fail together come back together"
                ),
                retries.library,
            )


@rule(
    "jitter-lost-at-cap",
    "warning",
    "the cap takes the jitter away",
    outage="Once the delay has reached its cap it is the same for all: in a long outage they retry in step after all.",
    abate="Backoff(base=…, cap=…) caps first and draws the delay afterwards",
    fixes={
        "": "cap first and draw afterwards: random.uniform(0, min(cap, base * 2**n))",
        "tenacity": "use wait_random_exponential(max=…), or wait_exponential(max=…) + wait_random(0, …)",
        "stamina": "keep attempts and timeout so low that wait_max is not reached; stamina caps after its jitter",
        "urllib3": "raise backoff_max beyond the longest delay that total allows; urllib3 caps after its jitter",
        "retry": "leave max_delay out and bound tries; retry caps after its jitter",
    },
)
def jitter_lost_at_cap(program: Program) -> Iterator[Spot]:
    """Find sums of backoff and jitter that are capped afterwards, if the attempts suffice to reach the cap."""
    for retries in program.retries:
        wait = retries.wait
        if wait.jitter != "lost" or not retries.retries or not _reaches_cap(retries):
            continue
        cap = "its cap" if wait.cap is None else f"its cap of {seconds(wait.cap)}"
        yield program.spot(
            retries.node,
            retries.function,
            f"{retries.label} adds jitter and caps the sum: at {cap} every delay is the same",
            retries.library,
        )


@rule(
    "fixed-wait",
    "note",
    "all hosts wait the same fixed time",
    outage="One process is fine. A fleet that failed at one moment comes back at one moment, again and again.",
    abate=SPREAD,
    fixes={
        "": "draw the delay at random around its mean",
        "tenacity": "wait=wait_random_exponential(max=…), or wait_fixed(…) + wait_random(0, …)",
        "backoff": "leave jitter at its default (full_jitter)",
        "retrying": "use wait_random_min and wait_random_max instead of wait_fixed",
        "retry": "pass jitter=(0, …) and backoff=2",
        "celery": "retry_backoff=True, which has jitter and a cap of 600 s; or self.retry(countdown=random.uniform(…))",
    },
)
def fixed_wait(program: Program) -> Iterator[Spot]:
    """Find retries of libraries that wait a fixed time."""
    for retries in program.retries:
        if _waits_equally(retries) and not retries.wait.grows and retries.library != "loop":
            yield program.spot(
                retries.node,
                retries.function,
                f"{retries.label} waits {describe(retries)} each time, on every host alike",
                retries.library,
            )


@rule(
    "no-wait",
    "warning",
    "a retry follows at once",
    outage="All attempts are spent within milliseconds of the failure, and the service gets them as one burst.",
    abate=SPREAD,
    fixes={
        "": "wait between attempts, longer each time and at random",
        "tenacity": "pass wait=wait_random_exponential(max=…): without it there is no wait",
        "urllib3": "pass backoff_factor=… and backoff_jitter=…: without them there is no wait",
        "retrying": "pass wait_exponential_multiplier=… and wait_jitter_max=…",
        "retry": "pass delay=…, backoff=2 and jitter=(0, …)",
    },
)
def no_wait(program: Program) -> Iterator[Spot]:
    """Find retries without a wait."""
    for retries in program.retries:
        if not retries.wait.nothing or not retries.retries or retries.polls:
            continue
        if retries.library == "urllib3" and retries.attempts == 2:
            continue  # whatever its backoff is, urllib3 makes the first retry at once
        if retries.library != "loop" or _asks_a_service(retries):
            yield program.spot(
                retries.node, retries.function, f"{retries.label} retries without waiting", retries.library
            )


def _waits_equally(retries: Retries) -> bool:
    wait = retries.wait
    return (
        retries.retries
        and not retries.polls
        and (wait.grows or not _until_ready(retries))
        and wait.known
        and wait.jitter == "none"
        and not wait.nothing
        and not wait.hint
    )


def _until_ready(retries: Retries) -> bool:
    return any(waits_until_ready(covered.function.name) for covered in retries.covered)


def _asks_a_service(retries: Retries) -> bool:
    """Return whether a loop repeats after errors of a service, more than once: one more try often has other input."""
    if (retries.attempts is not None and retries.attempts <= 2) or is_local(retries.node):
        return False
    if any(decides(handler) or repairs(handler) for handler in retries.swallows):
        return False
    return any(name in EVERYTHING or name.endswith(OF_SERVICES) for name in retries.errors or ())


def _reaches_cap(retries: Retries) -> bool:
    wait = retries.wait
    if wait.cap == math.inf:
        return False
    if retries.attempts is None or wait.first is None or wait.cap is None:
        return True
    return bool(wait.first * wait.factor ** min(retries.attempts - 2, 100) >= wait.cap)


def describe(retries: Retries) -> str:
    """Return the delays in words: ``1, 2, 4 … s``."""
    wait = retries.wait
    if wait.first is None or (wait.grows and wait.first == 0):
        return "longer each time" if wait.grows else "a fixed time"
    if not wait.grows:
        return seconds(wait.first)
    count = 3 if retries.attempts is None else min(3, max(1, int(min(retries.attempts, 100)) - 1))
    shown = ", ".join(f"{wait.longest(retry):g}" for retry in range(1, count + 1))
    return f"{shown} s" if retries.attempts == count + 1 else f"{shown} … s"


def seconds(value: float) -> str:
    """Return a duration in words."""
    return f"{value:g} s"
