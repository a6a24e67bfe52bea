"""Handlers of tenacity's RetryError."""

from pathlib import Path

import pytest

from abate.migrate.files import SourceFile
from abate.migrate.program import migrate
from tests.migrate.rewriting import migrated, reason, rewritten, run

CODE = """\
import tenacity


@tenacity.retry(stop=tenacity.stop_after_attempt(3))
def work():
    return step()


def target():
    try:
        return work()
    except tenacity.RetryError as error:
        HANDLED
"""


@pytest.mark.parametrize(
    "handled",
    [
        "return repr(error.last_attempt.exception()), error.last_attempt.attempt_number",
        "return error.last_attempt.failed",
        "error.reraise()",
        "raise KeyError(1) from error",
        "raise",
        "return type(error.__cause__)",
    ],
)
def test_a_handler_does_the_same(handled):
    """It reads the same things off abate's error."""
    code = CODE.replace("HANDLED", handled)
    new = rewritten(code)
    assert "except abate.RetryExhausted as error:" in new
    for outcomes in ([ValueError("always")], ["fine"]):
        assert run(new, outcomes) == run(code, outcomes)


def test_handlers_in_other_files_are_rewritten():
    """A library's error is handled where its functions are used."""
    work = CODE[: CODE.index("def target")]
    handler = "from tenacity import RetryError\n\n\ntry:\n    work()\nexcept (OSError, RetryError):\n    pass\n"
    files = [SourceFile(Path("app.py"), work, "utf-8"), SourceFile(Path("use.py"), handler, "utf-8")]
    use = {result.file.path.name: result for result in migrate(files, ["tenacity"])}["use.py"]
    assert "except (OSError, abate.RetryExhausted):" in use.after
    assert "tenacity" not in use.after
    assert use.handlers == [6]


@pytest.mark.parametrize("handled", ["return error.last_attempt", "return error.last_attempt.result()"])
def test_a_handler_without_equivalent_keeps_the_sites(handled):
    """Or their error would be handled no more."""
    assert "has no equivalent" in reason(CODE.replace("HANDLED", handled))


def test_a_site_that_stays_shares_the_handler():
    """Both errors are handled, if the handler reads nothing off them."""
    left = "\n\n@tenacity.retry(stop=lambda state: True)\ndef other(): ...\n"
    new = migrated(CODE.replace("HANDLED", "raise").replace(" as error", "") + left)
    assert [site.mapped for site in new.sites] == [True, False]
    assert "except (tenacity.RetryError, abate.RetryExhausted):" in new.after
    assert migrated(new.after).after == new.after
    reads = migrated(CODE.replace("HANDLED", "return error.last_attempt.exception()") + left)
    assert not reads.changed
