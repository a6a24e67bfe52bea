"""Events of failing calls and work items, for the tests of log lines."""

from abate import events

DOWN = OSError("down")
WINDOW = 60.0


def failed(policy="orders", error=DOWN):
    return events.FirstFailure(policy, "blip", error)


def worked(key, ending="retry", policy="orders"):
    return events.Worked(policy, key, ending, 0.1, 1, DOWN if ending in ("retry", "slow") else None)


def kinds(lines):
    return [line.kind for line in lines]
