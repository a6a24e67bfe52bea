"""Comments, settings and baselines that silence findings."""

import json

import pytest

from abate.audit.auditing import audit
from abate.audit.baseline import Baseline, write_baseline
from abate.audit.settings import Settings, find_settings
from abate.errors import AbateError

CALL = "import requests\nrequests.get('https://example.com')"


def rules(tmp_path, code, **settings):
    file = tmp_path / "code.py"
    file.write_text(code)
    return [finding.rule.id for finding in audit([file], Settings(**settings)).findings]


@pytest.mark.parametrize(
    "code",
    [
        f"{CALL}  # abate: ignore[no-timeout]\n",
        f"{CALL}  # abate: ignore\n",
        f"{CALL}  # abate: ignore[no-timeout]: the host is this one\n",
        "import requests\n# abate: ignore[no-timeout]\nrequests.get('https://example.com')\n",
        "import requests\nrequests.get(\n    'https://example.com',  # abate: ignore[no-timeout]\n)\n",
    ],
)
def test_a_comment_silences_the_finding_on_its_line(tmp_path, code):
    """Behind any line of the statement, or above it."""
    assert rules(tmp_path, code) == []


def test_a_comment_silences_no_other_rule_and_no_other_line(tmp_path):
    """What a comment does not name is found, and a comment that does nothing is reported."""
    assert rules(tmp_path, f"{CALL}  # abate: ignore[layers]\n") == ["bad-ignore", "no-timeout"]
    assert rules(tmp_path, f"{CALL}\nrequests.get('x')  # abate: ignore[no-timeout]\n") == ["no-timeout"]


def test_a_misspelt_rule_in_a_comment_is_reported(tmp_path):
    """It would silence nothing, silently."""
    file = tmp_path / "code.py"
    file.write_text(f"{CALL}  # abate: ignore[no-timeuot]\n")
    messages = [finding.spot.message for finding in audit([file], Settings()).findings]
    assert any("there is no rule 'no-timeuot'" in message for message in messages)


def test_a_string_that_looks_like_a_comment_silences_nothing(tmp_path):
    """Comments are read by Python's own tokenizer."""
    assert rules(tmp_path, f"{CALL}; x = '# abate: ignore[no-timeout]'\n") == ["no-timeout"]


def test_settings_switch_rules_off_and_change_their_severity(tmp_path):
    """By id."""
    assert rules(tmp_path, CALL, ignore=("no-timeout",)) == []
    (finding,) = audit([tmp_path / "code.py"], Settings(severity={"no-timeout": "note"})).findings
    assert finding.severity == "note"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("excludes = []", "did you mean exclude"),
        ("exclude = 'x'", "expected a list of globs"),
        ("fail_on = 'errors'", "expected one of note, warning, error, never"),
        ("[tool.abate.audit.severity]\nlayers = 'fatal'", "expected one of note, warning, error"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, text, message):
    """With what was expected."""
    (tmp_path / "pyproject.toml").write_text(f"[tool.abate.audit]\n{text}\n")
    with pytest.raises(AbateError, match=message):
        find_settings(tmp_path)


def test_an_unknown_rule_in_the_settings_is_named(tmp_path):
    """With the one that was probably meant."""
    with pytest.raises(AbateError, match="did you mean no-timeout"):
        audit([], Settings(ignore=("no-timeouts",)))


def test_settings_are_found_above_the_audited_path(tmp_path):
    """The nearest pyproject.toml counts, with or without settings."""
    (tmp_path / "pyproject.toml").write_text("[tool.abate.audit]\nexclude = ['gen']\nfail_on = 'error'\n")
    (tmp_path / "src" / "app").mkdir(parents=True)
    found, folder = find_settings(tmp_path / "src" / "app")
    assert found == Settings(exclude=("gen",), fail_on="error")
    assert folder == tmp_path
    (tmp_path / "src" / "pyproject.toml").write_text("[project]\n")
    assert find_settings(tmp_path / "src" / "app") == (Settings(), None)


def test_a_baseline_knows_findings_after_their_lines_have_moved(tmp_path):
    """New ones are reported, and ones that are gone are counted."""
    file = tmp_path / "code.py"
    file.write_text(CALL)
    baseline = tmp_path / "baseline.json"
    assert write_baseline(baseline, audit([file], Settings()).findings) == 1
    file.write_text(f"import os\n\n\n{CALL}\nrequests.get('https://example.com')\nrequests.put('x')\n")
    new, known, gone = Baseline(baseline).new(audit([file], Settings()).findings)
    assert [(finding.spot.line, known, gone) for finding in new] == [(6, 1, 0), (7, 1, 0)]
    file.write_text("")
    assert Baseline(baseline).new(audit([file], Settings()).findings) == ([], 0, 1)


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({"version": 1, "findings": [{}]}), "[" * 100_000])
def test_a_file_that_is_no_baseline_is_refused(tmp_path, content):
    """It is not taken for an empty one."""
    file = tmp_path / "baseline.json"
    file.write_text(content)
    with pytest.raises(AbateError, match="baseline"):
        Baseline(file)


def test_a_baseline_of_another_version_or_none_is_refused(tmp_path):
    """By name."""
    file = tmp_path / "baseline.json"
    with pytest.raises(AbateError, match="can't be read"):
        Baseline(file)
    file.write_text('{"version": 9, "findings": []}')
    with pytest.raises(AbateError, match="has version 9: expected 1"):
        Baseline(file)
