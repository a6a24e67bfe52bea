"""Reads the delay that a program computes by itself: does it grow, is it random, does a cap make it equal for all?"""

from __future__ import annotations

import ast
import math
from typing import NamedTuple

from abate.audit.module_index import Function, inside
from abate.audit.names import Names
from abate.audit.retries import Jitter, Wait

MAX_STEPS = 40
"""Expressions that are read for one delay."""
RANDOM_METHODS = frozenset(
    {
        "random",
        "uniform",
        "randint",
        "randrange",
        "expovariate",
        "gauss",
        "triangular",
        "betavariate",
        "normalvariate",
        "choice",
    }
)
HINTS = ("retry_after", "retry-after", "retryafter", "ratelimit", "rate_limit", "reset_at", "pushback", "x-rate")
TRANSPARENT = frozenset({"int", "float", "round", "abs", "math.ceil", "math.floor", "timedelta", "datetime.timedelta"})


class Shape(NamedTuple):
    """What is known of an expression."""

    value: float | None = None
    """Its value, or the first of its values."""
    grows: bool = False
    random: int = 0
    """0 for none, 1 for lost at a cap, 2 for some."""
    cap: float | None = math.inf
    """None for a cap of unknown size."""
    hint: bool = False
    opaque: bool = False


OPAQUE = Shape(opaque=True)
OPAQUE_HINT = Shape(hint=True, opaque=True)


class DelayReader:
    """Reads the delays of one loop."""

    def __init__(self, names: Names, function: Function, counters: frozenset[str]) -> None:
        self._names, self._function, self._counters = names, function, counters
        self._steps = 0
        self._open: set[tuple[str, int]] = set()
        """Names that are being read: a name that is assigned from itself grows."""

    def wait(self, node: ast.expr | None) -> Wait:
        """Return the wait that an expression describes."""
        if node is None:
            return Wait(known=False, jitter="unknown")
        shape = self._read(node, self._function)
        jitter: Jitter = "unknown" if shape.opaque and not shape.random else ("none", "lost", "some")[shape.random]
        return Wait(
            first=shape.value, grows=shape.grows, cap=shape.cap, jitter=jitter, hint=shape.hint, known=not shape.opaque
        )

    def _read(self, node: ast.AST, function: Function) -> Shape:
        self._steps += 1
        if self._steps > MAX_STEPS:
            return OPAQUE
        match node:
            case ast.Constant(value=int() | float() as value):
                return Shape(float(value) if abs(value) < 1e18 else math.inf)
            case ast.Name(id=name):
                return self._name(name, function)
            case ast.BinOp():
                return self._operation(node, function)
            case ast.UnaryOp(operand=inner) | ast.Await(value=inner) | ast.NamedExpr(value=inner):
                return self._read(inner, function)
            case ast.AugAssign(op=operator, value=value):
                grown = self._read(value, function)
                growing = isinstance(operator, ast.Mult | ast.Add | ast.Pow | ast.LShift) and not grown.random
                return grown._replace(value=None, grows=growing or grown.grows)
            case ast.IfExp(body=body, orelse=other):
                return _either([self._read(body, function), self._read(other, function)])
            case ast.BoolOp(values=values):
                return _either([self._read(value, function) for value in values])
            case ast.Call():
                return self._call(node, function)
            case ast.Attribute():
                return self._attribute(node, function)
            case ast.Subscript(value=items) | ast.For(iter=items) | ast.AsyncFor(iter=items):
                return OPAQUE_HINT if isinstance(node, ast.Subscript) and _hints(node) else self._item(items, function)
        return OPAQUE

    def _item(self, items: ast.expr, function: Function) -> Shape:
        """Read one of a list of delays."""
        if isinstance(items, ast.Call) and self._names.resolve(items.func, function) == "enumerate" and items.args:
            items = items.args[0]
        chosen = self._names.follow(items, function).node
        if not isinstance(chosen, ast.Tuple | ast.List):
            return OPAQUE
        first = self._names.number(chosen.elts[0], function) if chosen.elts else None
        last = self._names.number(chosen.elts[-1], function) if chosen.elts else None
        return Shape(first, first != last, cap=last)

    def _name(self, name: str, function: Function) -> Shape:
        if "jitter" in name.lower():
            return Shape(random=2)
        if _is_hint(name):
            return OPAQUE_HINT
        if name in self._counters:
            return Shape(grows=True)
        key = (name, id(function))
        if key in self._open:
            return Shape()
        values = self._names.values(ast.Name(name), function)
        if not values:
            return Shape()  # a parameter, or from another module: the same for all hosts
        self._open.add(key)
        try:
            shapes = [self._read(value.node, value.function) for value in values[:8]]
            for position, value in enumerate(values[:8]):
                if self._grows_from(value.node, name):
                    limit = shapes[position].value  # of `min(delay * 2, 60)`
                    cap = shapes[position].cap if limit is None else limit
                    shapes[position] = shapes[position]._replace(value=None, grows=True, cap=cap)
        finally:
            self._open.discard(key)
        return self._assigned(shapes, values[0].function, name)

    def _assigned(self, shapes: list[Shape], function: Function, name: str) -> Shape:
        """Combine what is assigned to one name: a start, and what replaces it later."""
        combined = _either(shapes)
        constants = [
            shape.value for shape in shapes if shape.value is not None and not shape.grows and not shape.random
        ]
        if combined.grows and combined.cap == math.inf and self._compared(function, name):
            combined = combined._replace(cap=None)
        return combined._replace(value=constants[0] if constants else combined.value)

    def _compared(self, function: Function, name: str) -> bool:
        """Return whether a name is compared anywhere in its function, which may be how it is capped."""
        for node in inside(function.node):
            if isinstance(node, ast.Compare) and any(
                isinstance(part, ast.Name) and part.id == name for part in (node.left, *node.comparators)
            ):
                return True
        return False

    def _grows_from(self, node: ast.AST, name: str) -> bool:
        """Return whether a value is computed by adding to a name, or by multiplying it."""
        if isinstance(node, ast.AugAssign):
            return isinstance(node.op, ast.Mult | ast.Add | ast.Pow | ast.LShift)
        return any(
            isinstance(part, ast.BinOp)
            and isinstance(part.op, ast.Mult | ast.Add | ast.Pow | ast.LShift)
            and any(isinstance(side, ast.Name) and side.id == name for side in (part.left, part.right))
            for part in inside(node)
        )

    def _operation(self, node: ast.BinOp, function: Function) -> Shape:
        left, right = self._read(node.left, function), self._read(node.right, function)
        value = self._names.number(node, function)
        random = max(left.random, right.random)
        hint, opaque = left.hint or right.hint, left.opaque or right.opaque
        grows = left.grows or right.grows
        cap: float | None = math.inf
        if grows:
            # a sum or product of something capped is capped as well
            caps = [side.cap for side in (left, right) if side.grows]
            cap = math.inf if math.inf in caps else None
        if value is None and isinstance(node.op, ast.Pow) and grows:
            value = 1.0 if left.value is not None else None
        elif value is None and isinstance(node.op, ast.Mult):
            value = _product(left, right)
        elif value is None and isinstance(node.op, ast.Add):
            value = left.value if left.grows else right.value if right.grows else None
        return Shape(value, grows, random, cap, hint, opaque and not random)

    def _call(self, node: ast.Call, function: Function) -> Shape:
        name = self._names.resolve(node.func, function) or ""
        last = node.func.attr if isinstance(node.func, ast.Attribute) else name.rpartition(".")[2]
        arguments = [*node.args, *[keyword.value for keyword in node.keywords]]
        if (
            name.startswith(("random.", "numpy.random.", "secrets."))
            or last in RANDOM_METHODS
            or "jitter" in last.lower()
        ):
            inner = [self._read(argument, function) for argument in arguments]
            caps = [shape.cap for shape in inner if shape.grows]
            return Shape(None, bool(caps), 2, math.inf if math.inf in caps or not caps else caps[0])
        if name in ("min", "max") and len(arguments) > 1:
            return self._limited(name, [self._read(argument, function) for argument in arguments])
        if name in TRANSPARENT and arguments:
            return self._read(arguments[0], function)
        if name in ("math.pow", "pow") and len(arguments) >= 2:
            return self._operation(ast.BinOp(arguments[0], ast.Pow(), arguments[1]), function)
        if _hints(node):
            return OPAQUE_HINT
        made = self._names.called(name)
        if made is not None and (name, 0) not in self._open:
            return self._returned(made, name)
        return OPAQUE

    def _limited(self, name: str, shapes: list[Shape]) -> Shape:
        combined = _either(shapes)
        if name == "max":
            return combined
        growing = [shape for shape in shapes if shape.grows]
        fixed = [shape.value for shape in shapes if not shape.grows and shape.value is not None]
        if not growing:
            return combined
        first = next((shape.value for shape in growing if shape.value is not None), None)
        return combined._replace(value=first, cap=min(fixed) if fixed else None, random=min(combined.random, 1))

    def _returned(self, function: Function, name: str) -> Shape:
        """Read what a function of the program returns; its parameters may be counters."""
        self._open.add((name, 0))
        counters, self._counters = (
            self._counters,
            self._counters | {parameter for parameter in function.parameters if _counts(parameter)},
        )
        try:
            shapes = [
                self._read(node.value, function)
                for node in inside(function.node)
                if isinstance(node, ast.Return) and node.value is not None
            ]
        finally:
            self._counters = counters
            self._open.discard((name, 0))
        return _either(shapes) if shapes else OPAQUE

    def _attribute(self, node: ast.Attribute, function: Function) -> Shape:
        name = node.attr
        if "jitter" in name.lower():
            return Shape(random=2)
        if _is_hint(name):
            return OPAQUE_HINT
        if _counts(name):
            return Shape(grows=True)
        key = (f".{name}", 0)
        if key in self._open:
            return Shape()
        values = self._names.values(node, function)
        if not values:
            made = self._names.called(self._names.resolve(node, function))
            return OPAQUE if made is None else self._returned(made, name)
        self._open.add(key)
        try:
            shapes = [self._read(value.node, value.function) for value in values[:8]]
        finally:
            self._open.discard(key)
        grows = any(
            isinstance(part, ast.Attribute) and part.attr == name for value in values[:8] for part in inside(value.node)
        ) or any(isinstance(value.node, ast.AugAssign) for value in values)
        combined = _either(shapes)
        return combined._replace(grows=combined.grows or grows, cap=None if grows else combined.cap)


def _counts(name: str) -> bool:
    """Return whether a name says that it counts attempts."""
    lower = name.lower().strip("_")
    if lower.startswith(("max", "num", "total", "n_", "no_")):
        return False
    return lower in ("n", "i", "count", "retries", "tries") or any(
        word in lower for word in ("attempt", "retry_c", "try_n", "failures")
    )


def _is_hint(name: str) -> bool:
    lower = name.lower()
    return any(word in lower for word in HINTS)


def _hints(node: ast.AST) -> bool:
    """Return whether an expression reads what a server asked for."""
    for part in inside(node):
        match part:
            case ast.Constant(value=str(text)) | ast.Name(id=text) | ast.Attribute(attr=text) if _is_hint(text):
                return True
    return False


def _product(left: Shape, right: Shape) -> float | None:
    if left.value is not None and right.value is not None:
        return left.value * right.value
    grown, other = (left, right) if left.grows else (right, left)
    return other.value if grown.value is None else None


def _either(shapes: list[Shape]) -> Shape:
    """Combine expressions of which one is taken."""
    growing = [shape for shape in shapes if shape.grows]
    # an unknown alternative leaves open whether the rest matters, unless the known one grows without jitter
    known = next((shape.value for shape in shapes if shape.value is not None), None)
    caps = [shape.cap for shape in (growing or shapes)]
    cap: float | None = math.inf
    if math.inf not in caps or (growing and any(cap != math.inf for cap in caps)):
        cap = next((cap for cap in caps if cap is not None and cap != math.inf), None)
    return Shape(
        known,
        bool(growing),
        max((shape.random for shape in shapes), default=0),
        cap,
        any(shape.hint for shape in shapes),
        any(shape.opaque for shape in shapes) and not growing,
    )
