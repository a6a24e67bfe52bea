"""`abate audit`: formats, exit codes, options."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from abate.cli import main

CODE = """\
import time
import requests

for attempt in range(5):
    try:
        requests.get("https://example.com/?token=secret")
        break
    except OSError:
        time.sleep(2 ** attempt)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with one file that has an error, warnings and a note."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(CODE)
    return tmp_path


def test_the_terminal_shows_code_consequence_and_both_fixes(project, capsys):
    """As a reviewer would write it."""
    assert main(["audit", "."]) == 1
    printed = capsys.readouterr().out
    assert (
        "app.py:4:1: warning no-jitter\n        4 | for attempt in range(5):\n  the loop waits 1, 2, 4 … s" in printed
    )
    assert "outage: " in printed
    assert "fix:    make the delay random" in printed
    assert "abate:  @abate.retry" in printed
    assert "1 file with 9 lines and 1 retry: 1 error, 1 warning, 1 note" in printed
    assert "secret" not in printed


def test_json_is_a_list_of_objects(project, capsys):
    """With rule, severity, path, line and message."""
    assert main(["audit", "app.py", "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {(one["rule"], one["severity"], one["path"], one["line"]) for one in found} >= {
        ("no-jitter", "warning", "app.py", 4),
        ("no-timeout", "error", "app.py", 6),
    }
    assert all(one["message"] and one["outage"] and one["fix"] and one["abate"] for one in found)


def test_sarif_names_rules_and_places(project, capsys):
    """Version 2.1.0, as code hosts read it."""
    assert main(["audit", ".", "--format", "sarif"]) == 1
    log = json.loads(capsys.readouterr().out)
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert log["version"] == "2.1.0"
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("note", "warning", "error")
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "app.py"
        assert place["region"]["startLine"] >= 1


def test_github_gets_one_command_for_each_finding(project, capsys):
    """Newlines and commas in names are escaped."""
    (project / "a,b%c.py").write_text("import requests\nrequests.get('x')\n")
    assert main(["audit", ".", "--format", "github"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("::error file=a%2Cb%25c.py,line=2,col=1,title=no-timeout::requests.get has no timeout")


def test_markdown_is_a_review(project, capsys):
    """What is right, findings by severity, and what to do."""
    assert main(["audit", ".", "--format", "markdown"]) == 1
    printed = capsys.readouterr().out
    headings = [line for line in printed.splitlines() if line.startswith("## ")]
    assert headings == [
        "## What is right",
        "## Errors: these hurt in any outage",
        "## Warnings",
        "## Notes: these hurt at scale",
        "## What to do",
    ]
    assert "* 1 of 1 retries end after some attempts or some time." in printed
    assert "| 1 | no-timeout | error | 1 | 1 | pass timeout=… |" in printed


def test_exit_codes_follow_the_least_severity_that_fails(project, capsys):
    """0 if nothing counts, 1 if something does, 2 if there was no audit."""
    assert main(["audit", ".", "--fail-on", "never"]) == 0
    assert main(["audit", ".", "--ignore", "no-timeout", "--fail-on", "error"]) == 0
    assert main(["audit", ".", "--ignore", "no-timeout"]) == 1
    assert main(["audit", ".", "--exclude", "*.py"]) == 0
    assert main(["audit"]) == 2
    assert main(["audit", "nowhere"]) == 2
    assert main(["audit", ".", "--ignore", "no-such-rule"]) == 2
    assert "there is no rule 'no-such-rule'" in capsys.readouterr().err


def test_settings_and_baseline_of_the_project_are_read(project, capsys):
    """What is in the baseline does not count."""
    assert main(["audit", ".", "--write-baseline", "known.json"]) == 0
    (project / "pyproject.toml").write_text("[tool.abate.audit]\nbaseline = 'known.json'\n")
    assert main(["audit", "."]) == 0
    assert "3 findings in the baseline" in capsys.readouterr().out
    (project / "app.py").write_text(CODE + "requests.put('x')\n")
    assert main(["audit", ".", "--format", "json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)
    assert (finding["rule"], finding["line"]) == ("no-timeout", 10)
    assert main(["audit", ".", "--baseline", "missing.json"]) == 2


def test_an_isolated_audit_lets_the_audited_code_silence_nothing(project, capsys):
    """Neither its settings nor its comments nor its baseline count; what the command line says does."""
    (project / "pyproject.toml").write_text("[tool.abate.audit]\nexclude = ['*']\nfail_on = 'never'\nbaseline = 'x'\n")
    (project / "app.py").write_text("import requests\nrequests.get('x')  # abate: ignore\n")
    assert main(["audit", ".", "--isolated", "--format", "json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)
    assert finding["rule"] == "no-timeout"
    assert main(["audit", ".", "--isolated", "--ignore", "no-timeout"]) == 0


def test_the_hook_of_pre_commit_audits_the_repository(project, capsys):
    """Its entry and arguments are a command that runs; the files of a commit are not passed, tests are left out."""
    text = (Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text("utf-8")
    hook = dict(line.strip(" -").split(": ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert (hook["id"], hook["pass_filenames"]) == ("abate-audit", "false")
    (project / "tests").mkdir()
    (project / "tests" / "test_app.py").write_text(CODE)
    program, *command = hook["entry"].split()
    assert program == "abate"
    assert main([*command, *json.loads(hook["args"])]) == 1
    assert "1 test file left out" in capsys.readouterr().out


def test_the_rules_are_listed(capsys):
    """Without a path."""
    assert main(["audit", "--rules"]) == 0
    assert "layers" in capsys.readouterr().out


def test_audited_code_is_never_imported_or_run(tmp_path):
    """Nor is any module of it, nor what it imports."""
    (tmp_path / "app.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nimport xmlrpc.client\nraise SystemExit(7)\n"
    )
    program = (
        "import sys; from abate.cli import main; code = main(['audit', sys.argv[1]]);"
        "print(code, 'app' in sys.modules, 'xmlrpc' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "0 False False"
    assert not (tmp_path / "ran").exists()
