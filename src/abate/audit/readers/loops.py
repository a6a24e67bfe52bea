"""Reads loops that retry: a loop that goes on after a failure and ends after a success."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from abate.audit.control_flow import FALL, tries_in, ways_out
from abate.audit.delays import DelayReader
from abate.audit.module_index import Function, Loop, inside
from abate.audit.names import Names
from abate.audit.readers.errors import caught, hands_on
from abate.audit.readers.loop_purposes import asks_person, reads_time, takes_next, waits_for_state
from abate.audit.readers.loop_words import RETRY_WORD, SLEEPS, arguments, is_sleep, logs
from abate.audit.retries import NO_WAIT, UNKNOWN_WAIT, Covered, Retries, Wait

STATUS = re.compile(r"status(?:_?code)?$")
LOCAL_ERRORS = frozenset(
    {
        "ValueError", "KeyError", "IndexError", "LookupError", "AttributeError", "TypeError", "NameError",
        "ImportError", "ModuleNotFoundError", "StopIteration", "StopAsyncIteration", "EOFError",
        "UnicodeError", "UnicodeDecodeError", "UnicodeEncodeError",
        "FileExistsError", "FileNotFoundError", "NotADirectoryError", "IsADirectoryError",
        "InterruptedError", "BlockingIOError", "ZeroDivisionError", "AssertionError", "NotImplementedError",
        "SyntaxError", "RecursionError", "MemoryError", "OverflowError", "queue.Empty", "queue.Full", "Queue.Empty",
        "asyncio.QueueEmpty", "asyncio.QueueFull", "json.JSONDecodeError", "json.decoder.JSONDecodeError",
        "re.error", "subprocess.TimeoutExpired", "UnsupportedOperation", "io.UnsupportedOperation", "KeyboardInterrupt",
        "PermissionError", "ProcessLookupError", "ChildProcessError", "asyncio.IncompleteReadError",
        "multiprocessing.TimeoutError", "pydantic.ValidationError", "jsonschema.ValidationError", "struct.error",
    }
)  # fmt: skip
"""Errors that come from the program itself: going on after one of them is control flow, or asks something else."""
COUNTERS = ("range", "count", "xrange")


class LoopReader:
    """Reads the loops of one program."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def read(self, function: Function) -> Iterator[Retries]:
        """Yield the retries in a function's own loops."""
        for loop in function.loops:
            found = self._read(loop, function)
            if found is not None:
                yield found

    def _read(self, loop: Loop, function: Function) -> Retries | None:
        found = self._repeating(loop)
        handlers = [handler for attempt in found for handler in attempt.handlers]
        if not handlers and not self._checks_status(loop):
            return None
        if not self._is_counter(loop, function) or takes_next(loop) or asks_person(loop):
            return None
        errors = tuple(name for handler in handlers for name in caught(handler, function, self._names))
        if handlers and errors and all(name in LOCAL_ERRORS for name in errors):
            return None
        sleeps = self._sleeps(loop, function, handlers)
        if not self._says_so(loop, function, found, sleeps):
            return None
        made = Retries(
            "loop",
            "the loop",
            loop,
            function,
            attempts=self._attempts(loop, function, handlers),
            wait=self._wait(loop, function, sleeps),
            errors=errors or None,
        )
        made.swallows = [
            handler
            for attempt in found
            for handler in attempt.handlers
            if not attempt.judged or "continue" in ways_out(handler.body)
        ]
        made.covered.append(Covered(function, found[0].node.body if len(found) == 1 else loop.body))
        made.seconds = math.inf if self._watches_clock(loop) else None
        if not made.wait.grows:
            made.polls = waits_for_state(loop, made.swallows, errors, self._counts_attempts(loop))
        return made

    def _says_so(self, loop: Loop, function: Function, found: list[_Attempt], sleeps: list[ast.Call]) -> bool:
        """Return whether waits or names show that the loop retries; it may also poll, or serve what comes next."""
        counts = self._counts_attempts(loop)
        if not found:
            return bool(sleeps) and (counts or self._mentions_retry(loop))
        if all(attempt.ends for attempt in found):
            return bool(sleeps) or counts or self._mentions_retry(loop)
        # after a success it may go round as well: only a count of attempts, or a wait after failures alone, tells
        failing = [
            call
            for attempt in found
            for handler in attempt.handlers
            for call in self._sleeps_in(handler.body, function)
        ]
        if isinstance(loop, ast.While):
            gives_up = any("raise" in ways_out(one.body) for one in _handlers(found))
            return bool(sleeps) and counts if self._increments(loop) else counts and bool(failing or gives_up)
        return bool(failing) or (counts and bool(sleeps))

    # ── Is it a retry? ───────────────────────────────────────────────────────────────────────────────────────

    def _repeating(self, loop: Loop) -> list[_Attempt]:
        """Return the ``try`` statements after whose failure the loop goes on, if it may end after a success."""
        found = []
        for node, after in tries_in(loop.body):
            success = ways_out(node.body)
            if FALL in success:
                success = (success - {FALL}) | ways_out((*node.orelse, *after))
            flagged = self._ended_by_flag(loop, node)
            if not ({"return", "break"} & success or flagged):
                continue
            rest = ways_out(after)
            handlers = [handler for handler in node.handlers if _goes_on(handler, rest)]
            if handlers:
                found.append(_Attempt(node, handlers, flagged or not {FALL, "continue"} & success, "raise" in rest))
        return found

    def _ended_by_flag(self, loop: Loop, node: ast.Try | ast.TryStar) -> bool:
        """Return whether the condition of a ``while`` reads a name that the ``try`` sets."""
        if not isinstance(loop, ast.While):
            return False
        read = {part.id for part in inside(loop.test) if isinstance(part, ast.Name)}
        for statement in (*node.body, *node.orelse):
            for part in inside(statement):
                if isinstance(part, ast.Assign) and any(
                    isinstance(target, ast.Name) and target.id in read for target in part.targets
                ):
                    return True
        return False

    def _checks_status(self, loop: Loop) -> bool:
        """Return whether the loop ends or goes on by the status code of a response."""
        for node in _own(loop.body):
            if not isinstance(node, ast.If):
                continue
            reads = any(
                isinstance(part, ast.Attribute) and STATUS.search(part.attr) and isinstance(compare, ast.Compare)
                for compare in inside(node.test)
                if isinstance(compare, ast.Compare)
                and any(
                    _is_code(one)
                    for side in compare.comparators
                    for one in (side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side])
                )
                for part in inside(compare)
            )
            if reads and {"return", "break"} & (ways_out(loop.body)):
                return True
        return False

    def _is_counter(self, loop: Loop, function: Function) -> bool:
        """Return whether each round of the loop makes the same attempt again, not one for the next item."""
        if isinstance(loop, ast.While):
            return True
        target = {part.id for part in inside(loop.target) if isinstance(part, ast.Name)}
        numbers = self._numbers_only(loop.iter, function)
        if any(RETRY_WORD.search(name) for name in target):
            # `enumerate(providers)` asks another one each time, whatever the counter is called
            return numbers or self._names.resolve(loop.iter, function) != "enumerate()"
        if not numbers:
            name = self._names.resolve(loop.iter, function) or ""
            return name.endswith("()") and bool(RETRY_WORD.search(name.rpartition(".")[2]))
        used: set[str] = set()
        delays = {
            id(part)
            for call in self._sleeps_in(loop.body, function)
            for given in arguments(call)
            for part in inside(given)
        }
        for call in _own(loop.body):
            if id(call) in delays:
                continue
            if isinstance(call, ast.Call) and not logs(call) and not is_sleep(call, self._names, function):
                used |= {part.id for given in arguments(call) for part in inside(given) if isinstance(part, ast.Name)}
            elif isinstance(call, ast.Subscript):
                used |= {part.id for part in inside(call.slice) if isinstance(part, ast.Name)}
        return not target & used

    def _numbers_only(self, iterated: ast.expr, function: Function) -> bool:
        """Return whether a loop runs over numbers: a range, or a list of delays."""
        node, inner = self._names.follow(iterated, function)
        if isinstance(node, ast.Tuple | ast.List):
            return all(self._names.number(item, inner) is not None for item in node.elts)
        if not isinstance(node, ast.Call):
            return False
        name = (self._names.resolve(node.func, inner) or "").rpartition(".")[2]
        if name in ("enumerate", "reversed", "iter", "list") and node.args:
            return self._numbers_only(node.args[0], inner)
        return name in COUNTERS

    def _counts_attempts(self, loop: Loop) -> bool:
        """Return whether a name that the loop counts with or compares says that it counts attempts."""
        names: set[str] = set()
        tests: list[ast.AST] = [loop.test] if isinstance(loop, ast.While) else [loop.target, loop.iter]
        tests += [node.test for node in _own(loop.body) if isinstance(node, ast.If)]
        tests += [node.target for node in _own(loop.body) if isinstance(node, ast.AugAssign)]
        for test in tests:
            for part in inside(test):
                if isinstance(part, ast.Name | ast.Attribute):
                    names.add(part.id if isinstance(part, ast.Name) else part.attr)
        return any(RETRY_WORD.search(name) for name in names)

    def _increments(self, loop: Loop) -> bool:
        """Return whether each round adds one to a count of attempts."""
        return any(
            isinstance(node, ast.AugAssign)
            and isinstance(node.target, ast.Name)
            and bool(RETRY_WORD.search(node.target.id))
            for node in loop.body
        )

    def _mentions_retry(self, loop: Loop) -> bool:
        """Return whether a name or a message in the loop speaks of a retry."""
        for node in _own(loop.body):
            match node:
                case ast.Name(id=text) | ast.Attribute(attr=text) if RETRY_WORD.search(text):
                    return True
                case ast.Constant(value=str(text)) if "retry" in text[:200].lower():
                    return True
        return False

    # ── How does it retry? ───────────────────────────────────────────────────────────────────────────────────

    def _sleeps(self, loop: Loop, function: Function, handlers: list[ast.ExceptHandler]) -> list[ast.Call]:
        """Return the calls that wait: those in the handlers, or else all in the loop."""
        inner = [call for handler in handlers for call in self._sleeps_in(handler.body, function)]
        return inner or self._sleeps_in(loop.body, function)

    def _sleeps_in(self, statements: list[ast.stmt], function: Function) -> list[ast.Call]:
        return [
            node for node in _own(statements) if isinstance(node, ast.Call) and is_sleep(node, self._names, function)
        ]

    def _wait(self, loop: Loop, function: Function, sleeps: list[ast.Call]) -> Wait:
        if not sleeps:
            counted = isinstance(loop, ast.While) or self._numbers_only(loop.iter, function)
            return NO_WAIT if counted else UNKNOWN_WAIT  # `for attempt in backoff` may wait by itself
        waits = [self._wait_of(call, loop, function) for call in sleeps]
        for wait in waits:
            if wait.jitter in ("none", "lost") and wait.known:
                return next((other for other in waits if other.hint or other.jitter == "some"), wait)
        return waits[0]

    def _wait_of(self, call: ast.Call, loop: Loop, function: Function) -> Wait:
        """Return the wait of a call that sleeps, or of the sleep in the function of the program that it calls."""
        name = self._names.resolve(call.func, function) or ""
        given = arguments(call)
        made = self._names.called(name)
        if made is None:
            sleeps = name in SLEEPS or name.rpartition(".")[2].strip("_") in (
                "sleep",
                "wait",
                "async_sleep",
                "sleep_async",
            )
            delay = given[0] if given and (sleeps or not name) else None
            return DelayReader(self._names, function, self._counters(loop)).wait(delay)
        for inner in made.calls:
            if self._names.resolve(inner.func, made) in SLEEPS and inner.args:
                if isinstance(inner.args[0], ast.Name) and inner.args[0].id in made.parameters and given:
                    return DelayReader(self._names, function, self._counters(loop)).wait(given[0])
                counters = frozenset(name for name in made.parameters if RETRY_WORD.search(name))
                return DelayReader(self._names, made, counters).wait(inner.args[0])
        return UNKNOWN_WAIT

    def _counters(self, loop: Loop) -> frozenset[str]:
        """Return the names that count the rounds."""
        found: set[str] = set()
        if isinstance(loop, ast.For | ast.AsyncFor) and isinstance(loop.iter, ast.Call):
            found |= {part.id for part in inside(loop.target) if isinstance(part, ast.Name)}
        for node in _own(loop.body):
            match node:
                case ast.AugAssign(target=ast.Name(id=name), op=ast.Add() | ast.Sub(), value=ast.Constant()):
                    found.add(name)
        return frozenset(found)

    def _attempts(self, loop: Loop, function: Function, handlers: list[ast.ExceptHandler]) -> float | None:
        if isinstance(loop, ast.For | ast.AsyncFor):
            rounds = self._rounds(loop.iter, function)
            return None if rounds == math.inf and self._gives_up(loop, handlers) else rounds
        bounds = [number for number in self._bounds(loop, function, handlers) if number is not None]
        if bounds:
            return bounds[0]
        if isinstance(loop.test, ast.Constant) and loop.test.value and not self._gives_up(loop, handlers):
            return math.inf
        return None

    def _rounds(self, iterated: ast.expr, function: Function) -> float | None:
        node, inner = self._names.follow(iterated, function)
        if isinstance(node, ast.Tuple | ast.List):
            return float(len(node.elts))
        if not isinstance(node, ast.Call):
            return None
        name = (self._names.resolve(node.func, inner) or "").rpartition(".")[2]
        if name == "count":
            return math.inf
        if name == "enumerate" and node.args:
            return self._rounds(node.args[0], inner)
        if name not in ("range", "xrange") or not 1 <= len(node.args) <= 3:
            return None
        read = [self._names.number(value, inner) for value in node.args]
        numbers = [number for number in read if number is not None]
        if len(numbers) < len(read):
            return None
        start, stop, step = [0.0, *numbers, 1.0] if len(numbers) == 1 else [*numbers, 1.0][:3]
        if not step or not all(map(math.isfinite, (start, stop, step))):
            return math.inf
        return max(0.0, math.ceil((stop - start) / step))

    def _bounds(self, loop: ast.While, function: Function, handlers: list[ast.ExceptHandler]) -> Iterator[float | None]:
        """Yield the numbers that counters are compared with."""
        counters = self._counters(loop)
        for test in (loop.test, *loop.body):
            for node in inside(test):
                if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id in counters:
                    yield 2.0 if "raise" in ways_out(node.body) else None  # `if attempt: raise`
                if not isinstance(node, ast.Compare) or len(node.comparators) != 1:
                    continue
                sides = (node.left, node.comparators[0])
                names = [side.id if isinstance(side, ast.Name) else getattr(side, "attr", "") for side in sides]
                if names[0] in counters and isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE | ast.Eq):
                    bound = self._names.number(sides[1], function)
                    yield None if bound == 0 else bound
                elif names[1] in counters:
                    yield self._names.number(sides[0], function)

    def _gives_up(self, loop: Loop, handlers: list[ast.ExceptHandler]) -> bool:
        """Return whether anything but a success may end the loop."""
        for handler in handlers:
            if ways_out(handler.body) & {"return", "raise", "break"} or hands_on(handler):
                return True
        swallowed = {id(node) for handler in handlers for node in inside(handler.body)}
        for node in _own(loop.body):
            if id(node) not in swallowed and isinstance(node, ast.If) and "raise" in ways_out(node.body):
                return True
        return False

    def _watches_clock(self, loop: Loop) -> bool:
        """Return whether a condition in the loop compares times, which bounds the attempts."""
        tests = [loop.test] if isinstance(loop, ast.While) else []
        tests += [node.test for node in _own(loop.body) if isinstance(node, ast.If)]
        return any(map(reads_time, tests))


class _Attempt(NamedTuple):
    """A ``try`` in a loop whose failure leads to another round."""

    node: ast.Try | ast.TryStar
    handlers: list[ast.ExceptHandler]
    ends: bool
    """Whether every success ends the loop."""
    judged: bool
    """Whether code after the ``try`` may raise: it may look at an error that a handler has kept."""


def _is_code(node: ast.expr) -> bool:
    """Return whether an expression is an HTTP status code."""
    match node:
        case ast.Constant(value=int() as value):
            return 100 <= value < 600
        case ast.Attribute():
            return any(word in ast.unparse(node) for word in ("HTTPStatus.", "codes."))
    return False


def _handlers(found: list[_Attempt]) -> list[ast.ExceptHandler]:
    return [handler for attempt in found for handler in attempt.handlers]


def _goes_on(handler: ast.ExceptHandler, rest: set[str]) -> bool:
    """Return whether another attempt follows a handler."""
    ways = ways_out(handler.body)
    return "continue" in ways or (FALL in ways and bool({FALL, "continue"} & rest))


def _own(statements: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of statements, without nested functions and without the bodies of loops inside."""
    for statement in statements:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield from inside(statement)
