"""Applying edits to a file: nodes are replaced, everything else stays as it is written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import libcst as cst

Edit: TypeAlias = tuple[cst.CSTNode, "cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNode]"]


def edited(tree: cst.CSTNode, edits: Iterable[Edit]) -> cst.CSTNode:
    """Return a tree in which nodes are replaced. Of two edits, one inside the other, the outer one counts."""
    replace = _Replace(edits)
    found = tree.visit(replace)
    assert isinstance(found, cst.CSTNode)
    return found


class _Replace(cst.CSTTransformer):
    def __init__(self, edits: Iterable[Edit]) -> None:
        super().__init__()
        self.replacements = {id(node): (node, replacement) for node, replacement in edits}

    def on_visit(self, node: cst.CSTNode) -> bool:
        return id(node) not in self.replacements

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Any:
        _, replacement = self.replacements.get(id(original_node), (None, updated_node))
        return replacement
