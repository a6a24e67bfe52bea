"""`make test` runs a test that failed beside others again, alone; more failures, or one that stays, fail it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import pathlib, pytest

@pytest.mark.parametrize("number", range({tests}))
def test_(number):
    runs = pathlib.Path(f"runs-{{number}}")
    runs.write_text((runs.read_text() if runs.exists() else "") + ".")
    assert len(runs.read_text()) > {failures}
"""


def python(folder, *arguments):
    """Run Python in a folder with this repository's modules; return its exit code."""
    command = [sys.executable, *arguments]
    process = subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, check=False)
    return process.returncode


@pytest.mark.parametrize(
    ("tests", "failures", "expected"), [(1, 0, 1), (1, 1, 0), (2, 1, 0), (3, 1, 1), (1, 2, 1)], ids=str
)
def test_one_or_two_failed_tests_have_to_pass_alone(tmp_path, tests, failures, expected):
    """One or two are run again and decide; three are not, nor is a run in which none failed."""
    (tmp_path / "test_some.py").write_text(TESTS.format(tests=tests, failures=failures))
    assert python(tmp_path, "-m", "pytest", "-q") == (1 if failures else 0)
    assert python(tmp_path, "-m", "tests.rerun_failed") == expected
