"""The guides of docs/migrate: each row's left side is migrated into its right side, and both sides run."""

import re
from pathlib import Path

import pytest

from tests.migrate.rewriting import rewritten, run

PAGES = Path(__file__).parents[2] / "docs" / "migrate"
ROW = re.compile(r"^\| `@(.+?)` \| `@(abate\.retry\(.+?\))` \| ?(.*?) ?\|$", re.MULTILINE)
FUNCTIONS = """\


def is_busy(error):
    return "busy" in str(error)


def is_none(result):
    return result is None


@{}
def target():
    return step()
"""
OUTCOMES = (
    [ValueError("always")],
    [OSError("busy")],
    [ValueError("busy"), OSError("once"), "fine"],
    [KeyError("key")],
    [None, None, "there"],
    [None],
)


def rows():
    for page in sorted(PAGES.glob("*.md")):
        for old, new, change in ROW.findall(page.read_text("utf-8")):
            yield pytest.param(old, new, change, id=f"{page.stem}: {old}")


def code(old):
    """Return a file with one decorator, which imports by name what it uses of tenacity."""
    names = sorted(set(re.findall(r"\b(retry(?:_\w+)?|(?:stop|wait)_\w+)\b(?=\()", old)))
    own = f"from tenacity import {', '.join(names)}\n" if old.startswith("retry(") else ""
    return f"import backoff\nimport retrying\nimport stamina\n{own}{FUNCTIONS.format(old)}"


@pytest.mark.parametrize(("old", "new", "change"), list(rows()))
def test_a_row_of_a_guide(old, new, change):
    """The tool writes the right side; without a change, both do the same whatever happens."""
    after = rewritten(code(old))
    written = " ".join(re.search(r"@(abate\.retry\(.*?\))\ndef target", after, re.DOTALL)[1].split())
    assert written.replace("( ", "(").replace(", )", ")").replace(",)", ")") == new
    if not change:
        for outcomes in OUTCOMES:
            assert run(after, outcomes) == run(code(old), outcomes), outcomes


def test_each_guide_has_rows():
    """The pattern finds the tables."""
    found = [str(row.id).partition(":")[0] for row in rows()]
    assert min(found.count(page) for page in ("tenacity", "backoff", "stamina", "retrying")) >= 3
