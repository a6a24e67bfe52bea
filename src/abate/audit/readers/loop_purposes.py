"""Tells loops that retry from loops that wait for a state, ask another server, or ask a person."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from abate.audit.control_flow import ways_out
from abate.audit.module_index import Loop, inside
from abate.audit.readers.loop_words import logs

TIMES = re.compile(
    r"(?i)deadline|elapsed|timeout|monotonic|perf_counter|(?:^|_)now(?:_|$)|end_time|start_time|expire|^time$"
)
READINESS = re.compile(r"(?i)^_*(?:wait|poll|ping|until)|(?:^|_)(?:ready|healthy|alive|running|started)(?:_|$)")
"""Names of functions that wait until something has started."""
CURABLE = re.compile(r"(?i)retr|transient|tempor|recover|throttl|rate|connect|timeout|unavail|overload|network")
"""Names of functions that say whether an error may pass by itself."""
OUTAGE_WORDS = (
    "timeout", "timed out", "connect", "thrott", "rate", "too many", "429", "500", "502", "503", "504", "unavailable",
    "overload", "busy", "temporar", "slow", "reset", "refused", "retry", "network", "deadlock", "quota", "capacity",
)  # fmt: skip
"""What messages and codes of errors say if a service is in trouble."""
QUESTIONS = frozenset({"input", "raw_input", "getpass", "ask", "prompt", "confirm"})
LOCAL_CALLS = frozenset({"bind", "listen", "unlink", "rmtree"})


def waits_for_state(
    loop: Loop, handlers: list[ast.ExceptHandler], errors: tuple[str, ...], counts_attempts: bool
) -> bool:
    """Return whether a loop waits for something to be ready, not for a service in trouble to recover."""
    if isinstance(loop, ast.While) and not counts_attempts and _compares_time(loop):
        return True
    if errors and all("lock" in name.rpartition(".")[2].lower() for name in errors):
        return True
    return bool(handlers) and all(map(_awaits_one_answer, handlers))


def _compares_time(loop: ast.While) -> bool:
    tests = [loop.test, *[node.test for node in inside(loop) if isinstance(node, ast.If)]]
    return any(isinstance(node, ast.Compare) and reads_time(node) for test in tests for node in inside(test))


def waits_until_ready(function_name: str) -> bool:
    """Return whether the name of a function says that it waits until something has started."""
    return READINESS.search(function_name) is not None


def reads_time(test: ast.AST) -> bool:
    """Return whether a condition names a time."""
    for node in inside(test):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name):
                if TIMES.search(name):
                    return True
    return False


def _awaits_one_answer(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler goes on for one answer alone, such as 'not finished yet', and raises all else."""
    if handler.name is None or "raise" not in ways_out(handler.body):
        return False
    texts = [text for node in inside(handler.body) for text in _compared_texts(node, handler.name)]
    asked = [name for node in inside(handler.body) for name in _asked_functions(node, handler.name)]
    if any(CURABLE.search(name) for name in asked):
        return False
    return bool(texts or asked) and not any(word in text.lower() for text in texts for word in OUTAGE_WORDS)


def _compared_texts(node: ast.AST, error: str) -> Iterator[str]:
    """Yield the texts that a condition compares an error with."""
    if not isinstance(node, ast.If):
        return
    for compare in inside(node.test):
        if isinstance(compare, ast.Compare) and any(
            isinstance(part, ast.Name) and part.id == error for part in inside(compare)
        ):
            for side in (compare.left, *compare.comparators):
                if isinstance(side, ast.Constant) and isinstance(side.value, str):
                    yield side.value


def _asked_functions(node: ast.AST, error: str) -> Iterator[str]:
    """Yield the functions that a condition gives an error alone, such as ``is_gone(error)``."""
    if not isinstance(node, ast.If):
        return
    for call in inside(node.test):
        match call:
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[ast.Name(id=given)]):
                if given == error and name not in ("str", "repr", "type"):
                    yield name


def takes_next(loop: Loop) -> bool:
    """Return whether each round takes the next of some servers or items from an iterator."""
    for node in inside(loop):
        match node:
            case ast.Assign(value=ast.Call(func=ast.Name(id="next"), args=[ast.Name(), *_])):
                return True
    return False


def asks_person(loop: Loop) -> bool:
    """Return whether a person decides in each round."""
    return not QUESTIONS.isdisjoint(_called_names(loop))


def is_local(loop: ast.AST) -> bool:
    """Return whether a loop tries ports or files of its own host."""
    return not LOCAL_CALLS.isdisjoint(_called_names(loop))


def repairs(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler does something about the failure, and raises if that fails as well."""
    for node in inside(handler.body):
        if isinstance(node, ast.If) and "raise" in ways_out(node.body):
            calls = [part for part in inside(node.test) if isinstance(part, ast.Call)]
            if any(call.args and not logs(call) for call in calls):
                return True
    return False


def _called_names(loop: ast.AST) -> set[str]:
    calls = [node.func for node in inside(loop) if isinstance(node, ast.Call)]
    return {func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in calls}
