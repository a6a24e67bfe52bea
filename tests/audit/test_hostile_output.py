"""Names and code of the audited tree can't break the output, nor steer a terminal or a build."""

import json
import os

import pytest

from abate.audit.auditing import audit
from abate.audit.formats import machine, review, terminal_text
from abate.audit.settings import Settings
from abate.cli import main

CODE = "import requests\nrequests.get('\x1b[2J\u202e::error::%0A|`<b>')\n"
NAMES = ["line\nbreak.py", "clear\x1b[2J.py", "a,b::c%0A.py", "pipe|tick`<b>.py", "reversed\u202e.py", b"bytes\xff.py"]
FORMATS = {
    "terminal": terminal_text.as_text,
    "json": machine.as_json,
    "sarif": lambda found: machine.as_sarif(found, "1.0"),
    "markdown": review.as_markdown,
    "github": machine.as_github,
}


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A folder whose files have hostile names and hostile code."""
    folder = os.fsencode(tmp_path)
    for name in NAMES:
        with open(os.path.join(folder, os.fsencode(name)), "w", encoding="utf-8") as file:
            file.write(CODE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("form", FORMATS)
def test_the_output_has_no_control_character_and_can_be_written(hostile, form):
    """Neither a file name nor code moves the cursor, turns the text round, or stops the output."""
    text = FORMATS[form](audit([hostile], Settings()))
    assert text.encode("utf-8")
    assert not [letter for letter in text if not letter.isprintable() and letter != "\n"]


def test_a_workflow_command_stays_one_line(hostile):
    """No file name ends a command or begins another one."""
    lines = machine.as_github(audit([hostile], Settings())).splitlines()
    assert len(lines) == len(NAMES)
    for line in lines:
        properties, _, message = line.removeprefix("::error ").partition("::")
        assert [part.partition("=")[0] for part in properties.split(",")] == ["file", "line", "col", "title"]
        assert message.startswith("requests.get has no timeout")


def test_sarif_has_what_its_schema_requires(hostile):
    """The fields that SARIF 2.1.0 requires, with addresses that are addresses."""
    log = json.loads(machine.as_sarif(audit([hostile], Settings()), "1.0"))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"]
    for rule in driver["rules"]:
        assert rule["id"]
        assert rule["shortDescription"]["text"]
        assert rule["defaultConfiguration"]["level"] in {"none", "note", "warning", "error"}
    assert len(run["results"]) == len(NAMES)
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["message"]["text"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"].isascii()
        assert " " not in place["artifactLocation"]["uri"]
        assert place["region"]["startLine"] >= 1
        assert place["region"]["startColumn"] >= 1


@pytest.mark.parametrize(
    "text", ["tool = 3\n", "[tool]\nabate = []\n", "x = " + "[" * 9000, "\x00", "[tool.abate.audit]\nbaseline = '.'\n"]
)
def test_broken_settings_are_an_error_or_none_never_a_crash(hostile, text):
    """The command ends with a code of its own."""
    (hostile / "pyproject.toml").write_text(text)
    assert main(["audit", ".", "--fail-on", "never"]) in (0, 2)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_are_counted_as_python_counts_them(tmp_path, end):
    """Form feeds and odd separators inside a line are no line ends: code and comments are found where they stand."""
    lines = [b"import requests", b"\x0c", b"x = '\xe2\x80\xa8'", b"requests.get('a')  # abate: ignore[no-timeout]"]
    (tmp_path / "app.py").write_bytes(end.join([*lines, b"requests.get('b')"]) + end)
    (finding,) = audit([tmp_path], Settings()).findings
    assert (finding.spot.line, finding.code) == (5, "requests.get('b')")
