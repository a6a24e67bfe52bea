"""Queues that grow without bound, and messages that come back at once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from abate.audit.findings import Spot, rule
from abate.audit.module_index import Class, Function, enclosing_method, inside, is_self
from abate.audit.names import argument, is_constant
from abate.audit.program import Program, ResolvedCall

QUEUES = frozenset(
    {"queue.Queue", "queue.PriorityQueue", "asyncio.Queue", "asyncio.PriorityQueue",
     "multiprocessing.Queue", "multiprocessing.JoinableQueue", "queue.SimpleQueue", "multiprocessing.SimpleQueue"}
)  # fmt: skip
LIMIT = re.compile(r"^_*max_?\w*(?:size|len|bytes|buffer|queue|pending|items|messages)")
GIVING_BACK = frozenset({"basic_nack", "basic_reject", "reject", "nack", "requeue", "change_message_visibility"})
MESSAGES = ("message", "msg", "delivery", "incoming_message")


@rule(
    "unbounded-queue",
    "note",
    "a queue without a bound",
    outage="Work arrives faster than it is done: memory grows until the process is killed, and all of it is lost.",
    abate="abate.WorkQueue(capacity=10_000) refuses with QueueFull or blocks, as asked, and coalesces equal keys",
    fixes={"": "pass maxsize=…, and decide what happens when it is full: wait, refuse, or drop"},
)
def unbounded_queue(program: Program) -> Iterator[Spot]:
    """Find queues without a size that one function makes and another one fills."""
    for call in program.calls.values():
        if call.name not in QUEUES:
            continue
        size = argument(call.node, "maxsize", 0)
        if size is not None and not is_constant(size, 0):
            continue
        if _filled_elsewhere(program, call):
            yield program.spot(
                call.node,
                call.function,
                f"{call.name}() has no bound: it takes whatever arrives",
                call.name.partition(".")[0],
            )


def _filled_elsewhere(program: Program, call: ResolvedCall) -> bool:
    """Return whether the queue is an attribute that another method puts work into, not the free places of a pool."""
    method = enclosing_method(call.function)
    if method is None or method.owner is None:
        return False
    kind = method.owner
    held = {
        name
        for name, values in kind.attributes.items()
        if any(value is call.node or call.node in inside(value) for value, _ in values)
        and not any(
            word in name.lower()
            for word in ("ready", "free", "idle", "pool", "available", "resource", "result", "stop", "exit", "shutdown")
        )
    }
    if _limits_itself(kind):
        return False
    return any(
        isinstance(node.func, ast.Attribute)
        and node.func.attr in ("put", "put_nowait")
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr in held
        and is_self(node.func.value.value, other)
        for other in kind.methods.values()
        if other is not call.function
        for node in other.calls
    )


def _limits_itself(kind: Class) -> bool:
    """Return whether a class looks at the size of what it holds, or has a limit of its own for it."""
    if any(LIMIT.search(name) for name in kind.attributes):
        return True
    return any(
        isinstance(call.func, ast.Attribute) and call.func.attr in ("qsize", "full")
        for method in kind.methods.values()
        for call in method.calls
    )


@rule(
    "requeue-without-delay",
    "warning",
    "a message comes back at once",
    outage=(
        "A message that can't be handled goes round as fast as the broker delivers: a "
        "busy loop that starves the others."
    ),
    abate=(
        "an @abate.consumer gives a failed message back with jittered, growing delay, and buries it after max_receives"
    ),
    fixes={
        "": "give it back with a growing delay, and to a dead-letter queue after some deliveries",
        "pika": "requeue=False with a dead-letter exchange and a delay queue",
        "nats": "msg.nak(delay=…): a plain nak ignores the consumer's backoff",
        "sqs": "VisibilityTimeout=min(900, 2**receives * random.uniform(0.5, 1)) instead of 0",
        "celery": "self.retry(countdown=random.uniform(…)) or retry_backoff=True",
        "pubsub": "set a retry policy on the subscription: without one, nack() redelivers at once",
    },
)
def requeue_without_delay(program: Program) -> Iterator[Spot]:
    """Find messages that are given back for immediate delivery."""
    for call in program.calls.values():
        found = _given_back(call, program)
        if found is not None:
            yield program.spot(call.node, call.function, *found)


def _given_back(call: ResolvedCall, program: Program) -> tuple[str, str] | None:
    node = call.node
    if not isinstance(node.func, ast.Attribute) or call.function.name == node.func.attr:
        return None  # a method of the same name passes it on: its caller decides
    if isinstance(node.func.value, ast.Call):
        return None
    last, receiver = node.func.attr, node.func.value
    match last:
        case "nak" if not node.args and not node.keywords:
            return "nak() without a delay gives the message back at once", "nats"
        case "retry" if isinstance(receiver, ast.Name) and receiver.id == "self":
            if program.names.number(argument(node, "countdown"), call.function) == 0:
                return "self.retry(countdown=0) gives the task back at once", "celery"
    if last not in GIVING_BACK or not _in_handler(node, call.function):
        return None
    requeue = argument(node, "requeue")
    match last:
        case "basic_nack" | "basic_reject" if (requeue is None or is_constant(requeue, True)) and len(node.args) < 3:
            return f"{last} gives the message back at once (requeue is True)", "pika"
        case "reject" | "nack" if is_constant(requeue, True) and _is_message(receiver):
            return f"{last}(requeue=True) gives the message back at once", "pika"
        case "requeue" if not node.args and not node.keywords and _is_message(receiver):
            return "requeue() gives the message back at once", "kombu"
        case "change_message_visibility":
            if program.names.number(argument(node, "VisibilityTimeout"), call.function) == 0:
                return "VisibilityTimeout=0 gives the message back at once", "sqs"
    return None


def _is_message(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return any(word in name.lower() for word in MESSAGES)


def _in_handler(call: ast.Call, function: Function) -> bool:
    """Return whether a call stands in an ``except`` block: it gives back what failed."""
    for node in inside(function.node):
        if isinstance(node, ast.ExceptHandler) and any(part is call for part in inside(node.body)):
            return True
    return False
