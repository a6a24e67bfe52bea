"""The arguments of one call, read by name or position."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from abate.audit.names import Names, Value, argument, has_unpacked, is_constant

if TYPE_CHECKING:
    from abate.audit.program import ResolvedCall


class Given:
    """The arguments of a call."""

    def __init__(self, call: ResolvedCall, names: Names) -> None:
        self.call, self.names = call, names
        self.node, self.function = call.node, call.function

    def value(self, name: str, position: int | None = None) -> Value | None:
        """Return the expression of an argument, followed through simple assignments; None if it is not passed."""
        node = argument(self.node, name, position)
        return None if node is None else self.names.follow(node, self.function)

    def number(self, name: str, position: int | None = None, default: float | None = None) -> float | None:
        """Return the number that is passed; `default` if none is, None if it is not known."""
        node = argument(self.node, name, position)
        if node is None:
            return None if has_unpacked(self.node) else default
        return default if is_constant(node, None) else self.names.number(node, self.function)

    def has(self, name: str, position: int | None = None) -> bool:
        """Return whether an argument is passed, or may be among ``**kwargs``."""
        return argument(self.node, name, position) is not None or has_unpacked(self.node)

    def is_constant(self, name: str, constant: object, position: int | None = None) -> bool:
        """Return whether an argument is passed as this constant."""
        value = self.value(name, position)
        return value is not None and is_constant(value.node, constant)

    def numbers(self, name: str, position: int | None = None) -> tuple[int, ...]:
        """Return the whole numbers in a list, tuple or set that is passed."""
        value = self.value(name, position)
        if value is None:
            return ()
        if isinstance(value.node, ast.Call) and value.node.args:
            value = self.names.follow(value.node.args[0], value.function)
        if not isinstance(value.node, ast.Tuple | ast.List | ast.Set):
            return ()
        found = [self.names.number(item, value.function) for item in value.node.elts[:100]]
        return tuple(int(number) for number in found if number is not None)

    def texts(self, name: str, position: int | None = None) -> tuple[str, ...] | None:
        """Return the strings in a list, tuple or set that is passed; None if they are not known."""
        value = self.value(name, position)
        if value is not None and isinstance(value.node, ast.Call) and value.node.args:
            value = self.names.follow(value.node.args[0], value.function)
        if value is None or not isinstance(value.node, ast.Tuple | ast.List | ast.Set):
            return None
        items = [
            item.value for item in value.node.elts if isinstance(item, ast.Constant) and isinstance(item.value, str)
        ]
        return tuple(items) if len(items) == len(value.node.elts) else None
