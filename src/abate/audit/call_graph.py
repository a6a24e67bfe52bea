"""Which functions of the program the code in a place calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from abate.audit.module_index import Function, inside
from abate.audit.program import Program, ResolvedCall
from abate.audit.retries import Covered, Retries


def calls_in(program: Program, covered: Covered) -> Iterator[ResolvedCall]:
    """Yield the calls in code that is run again."""
    if covered.nodes is None:
        for node in covered.function.calls:
            yield program.calls[id(node)]
        return
    for statement in covered.nodes:
        for part in inside(statement):
            if isinstance(part, ast.Call) and id(part) in program.calls:
                yield program.calls[id(part)]


def calls_of(program: Program, retries: Retries) -> Iterator[ResolvedCall]:
    """Yield the calls that a retry makes again, in the places that it covers itself."""
    for covered in retries.covered:
        yield from calls_in(program, covered)


def reached(program: Program, retries: Retries, depth: int = 2) -> Iterator[ResolvedCall]:
    """Yield the calls that a retry makes again, also in the functions that it calls."""
    seen: set[int] = set()
    places = list(retries.covered)
    for level in range(depth + 1):
        following: list[Covered] = []
        for place in places:
            for call in calls_in(program, place):
                yield call
                made = program.names.called(call.name)
                if made is not None and id(made) not in seen and level < depth:
                    seen.add(id(made))
                    following.append(Covered(made))
        places = following


def enclosing(function: Function) -> Function:
    """Return the outermost function around a function."""
    while function.parent is not None and function.parent.parent is not None:
        function = function.parent
    return function
