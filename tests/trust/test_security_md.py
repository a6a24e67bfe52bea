"""SECURITY.md names the tests that hold its boundaries."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_is_named_is_there():
    """By its file and its name; a name without a file is of the file before it."""
    file = ""
    for path, name in re.findall(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`", (ROOT / "SECURITY.md").read_text()):
        if path or name:
            file = path or file
            text = (ROOT / file).read_text()
            assert not name or f"def {name}(" in text, f"{file} has no {name}"
    assert file


def test_every_module_that_is_named_is_there():
    """By its path in the package."""
    named = re.findall(r"`(abate/[\w/]+\.py)`", (ROOT / "SECURITY.md").read_text())
    assert named
    assert [path for path in named if not (ROOT / "src" / path).exists()] == []
