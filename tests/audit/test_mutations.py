"""Programs that parse and make no sense are audited, whatever stands where."""

import ast
import random
from pathlib import Path

import pytest

from abate.audit.auditing import audit
from abate.audit.settings import Settings

TREES = [ast.parse(file.read_text("utf-8")) for file in sorted((Path(__file__).parent / "samples").glob("*.py"))]
EXPRESSIONS = [node for tree in TREES for node in ast.walk(tree) if isinstance(node, ast.expr)]


class Mutation(ast.NodeTransformer):
    """Puts expressions of all samples in the places of others, and statements in another order."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        node = super().generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list) and self._random.random() < 0.1:
            self._random.shuffle(body)
        stored = isinstance(getattr(node, "ctx", None), ast.Store)
        if isinstance(node, ast.expr) and not stored and self._random.random() < 0.05:
            return self._random.choice(EXPRESSIONS)
        return node


@pytest.mark.parametrize("seed", range(40))
def test_no_mutation_of_a_sample_stops_the_audit(seed, tmp_path):
    """Rules and readers meet every kind of expression where they expect another one."""
    chosen = ast.parse(ast.unparse(TREES[seed % len(TREES)]))
    file = tmp_path / "mutated.py"
    file.write_text(ast.unparse(ast.fix_missing_locations(Mutation(seed).visit(chosen))))
    found = audit([file], Settings())
    assert found.files == 1 or found.findings[0].rule.id == "skipped-file"
