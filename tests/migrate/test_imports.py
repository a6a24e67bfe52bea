"""Imports after a migration."""

import pytest

from tests.migrate.rewriting import migrated, rewritten, run

SITE = "\n\n@retry(stop=stop_after_attempt(3), reraise=True)\ndef f(): ...\n"


def imports(code, **others):
    return rewritten(code + SITE, **others).partition("\n\n@")[0]


def test_an_import_that_is_not_used_any_more_is_replaced():
    """With the comment above it."""
    assert (
        imports("# retries\nfrom tenacity import retry, stop_after_attempt\nimport zlib")
        == "# retries\nimport abate\nimport zlib"
    )


def test_names_that_are_still_used_stay():
    """In the parentheses they were in."""
    code = "from tenacity import (\n    RetryCallState,\n    retry,\n    stop_after_attempt,\n)\n\nx: RetryCallState"
    assert imports(code) == "import abate\nfrom tenacity import (\n    RetryCallState,\n)\n\nx: RetryCallState"


def test_names_that_others_take_from_the_file_stay():
    """By an import, by an attribute, in ``__all__``, or unused from the beginning."""
    code = "from tenacity import retry, stop_after_attempt"
    assert "import retry\n" in imports(code, use="from app import retry\n") + "\n"
    assert "import stop_after_attempt\n" in imports(code, use="import app\napp.stop_after_attempt\n") + "\n"
    assert "import retry\n" in imports(code + '\n__all__ = ["retry"]')
    assert "import wait_fixed\n" in imports("from tenacity import retry, stop_after_attempt, wait_fixed") + "\n"


def test_an_import_within_a_function():
    """The new import is there too."""
    code = "def make():\n    from tenacity import retry\n\n    return retry(reraise=True)(print)\n"
    assert migrated(code).after.startswith("def make():\n    import abate\n\n    return abate.retry(")


def test_what_is_imported_already_is_not_imported_again():
    """Nor is the name bound twice."""
    assert (
        imports("import abate\nfrom tenacity import retry, stop_after_attempt\nimport zlib")
        == "import abate\nimport zlib"
    )


DECORATED = "@tenacity.retry(stop=tenacity.stop_after_attempt(3), reraise=True)\ndef target(): return step()\n"


@pytest.mark.parametrize(
    "code",
    [
        "import tenacity\nimport typing\nif typing.TYPE_CHECKING:\n    from tenacity import RetryCallState\n"
        + DECORATED,
        "if True: import tenacity\n" + DECORATED,
        "try:\n    import tenacity\nexcept ImportError:\n    raise SystemExit\n" + DECORATED,
        "def setup():\n    global tenacity\n    import tenacity\nsetup()\n" + DECORATED,
        "import os\nif os.environ.get('NOPE'):\n    import tenacity\nelse:\n    import tenacity\n" + DECORATED,
        "import typing\nif typing.TYPE_CHECKING:\n    from tenacity import RetryCallState\ndef make():\n"
        "    from tenacity import retry\n    return retry(reraise=True)(step)\ntarget = make()\n",
        "def first():\n    import tenacity\n    return tenacity.retry(reraise=True)\n"
        "def second():\n    import tenacity\n    return tenacity.retry(reraise=True)(step)\ntarget = second()\n",
        "class A:\n    import tenacity\n    retry = tenacity.retry(reraise=True)\ntarget = A.retry(step)\n",
    ],
    ids=["at the top too", "one line", "try", "global", "branches", "for types", "two functions", "a class"],
)
def test_where_an_import_is_made_in_some_cases_only(code):
    """The new one is at the top of the file, after its docstring and what comes from the future."""
    head = '"""A file."""\nfrom __future__ import annotations\n'
    new = rewritten(head + code)
    assert new.startswith(head + "import abate\n")
    assert run(new, [ValueError("once"), "fine"]).end == ("returned", "fine")


@pytest.mark.parametrize("line", ['__all__ = ["f"] + ["retry"]', '__all__ = ["f"]\n__all__.append("retry")'])
def test_names_that_are_exported_in_other_ways_stay(line):
    """All strings beside ``__all__`` count."""
    assert "import retry\n" in imports(f"from tenacity import retry, stop_after_attempt\n{line}") + "\n"
