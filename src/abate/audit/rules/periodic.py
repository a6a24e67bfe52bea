"""Periodic work that starts at the same second on every host."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from abate.audit.findings import Spot, rule
from abate.audit.module_index import inside
from abate.audit.names import argument, has_unpacked
from abate.audit.program import Program, ResolvedCall

CLOCKS = ("time.time", "datetime.now", "datetime.datetime.now", "time.time_ns")


@rule(
    "same-second",
    "note",
    "periodic work starts at the same second everywhere",
    outage="All hosts ask at the full minute: a peak each period in calm, and a herd at the worst moment in an outage.",
    abate="abate.ticks(period, key=host) and abate.consistent_jitter(key, period) give each host its own second",
    fixes={
        "": "add an offset that differs per host: a hash of its name, modulo the period",
        "apscheduler": "pass jitter=… (seconds) to the trigger",
    },
)
def same_second(program: Program) -> Iterator[Spot]:
    """Find cron triggers without jitter, and sleeps until the next full minute."""
    for call in program.calls.values():
        found = _aligned(call, program)
        if found is not None:
            yield program.spot(call.node, call.function, *found)


def _aligned(call: ResolvedCall, program: Program) -> tuple[str, str] | None:
    name = call.name or ""
    last = name.rpartition(".")[2]
    node = call.node
    if "apscheduler" in name or last in ("add_job", "scheduled_job"):
        trigger = argument(node, "trigger", 1 if last == "add_job" else 0)
        cron = isinstance(trigger, ast.Constant) and trigger.value == "cron"
        if (cron or last == "CronTrigger") and argument(node, "jitter") is None and not has_unpacked(node):
            return "the cron trigger has no jitter: it fires at the same second on every host", "apscheduler"
    if last == "at" and name.startswith("schedule.every()"):
        return "the job starts at the same second on every host", "schedule"
    if name in ("aiocron.crontab",):
        return "the job starts at the same second on every host", "aiocron"
    if last == "sleep" and node.args and _until_full_period(node.args[0], call, program):
        return "it sleeps until the clock is at a full period, which is the same second on every host", "loop"
    return None


def _until_full_period(given: ast.expr, call: ResolvedCall, program: Program) -> bool:
    """Return whether a delay is ``period - now % period``."""
    delay = program.names.follow(given, call.function).node
    for node in inside(delay):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            for part in inside(node.right):
                if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
                    clock = program.names.follow(part.left, call.function)
                    if any(
                        isinstance(one, ast.Call) and program.names.resolve(one.func, clock.function) in CLOCKS
                        for one in inside(clock.node)
                    ):
                        return True
    return False
