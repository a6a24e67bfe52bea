"""Imports after a migration."""

from tests.migrate.rewriting import migrated, rewritten

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
