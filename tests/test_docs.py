"""Every snippet in the README and the docs runs."""

import re
import shlex
from pathlib import Path

import pytest

import abate
from abate.cli import main
from abate.testing import VirtualClock

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "migrate").glob("*.md"))]
SNIPPET = re.compile(r"^```(python|toml)\n(.*?)^```$|^ {4}abate (sim) ([^\n]+)$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.toml)\n")
LINK = re.compile(r"\]\((?!http)([^)#]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_snippets_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    """Python snippets run one after another in one namespace; TOML ones are the files that they load.

    So do the simulator's commands, with few seeds; those on real sockets take too long, and are only understood.
    """
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "snippets"}
    for match in SNIPPET.finditer(page.read_text()):
        language, code = [group for group in match.groups() if group is not None]
        if language == "sim":
            simulate(shlex.split(code))
        elif language == "toml":
            named = FILE.match(code)
            Path(named[1] if named else "policies.toml").write_text(code)
        else:
            line = page.read_text()[: match.start(2)].count("\n")
            exec(compile("\n" * line + code, str(page), "exec"), namespace)


def simulate(words):
    few = {"list": [], "show": [], "tune": ["--seeds", "1", "--samples", "3"]}
    assert main(["sim", *words, *few.get(words[0], ["--seeds", "1"])]) == 0, words


def test_there_are_snippets_to_run():
    """The pattern finds what is there."""
    assert sum(len(SNIPPET.findall(page.read_text())) for page in PAGES) >= 15


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    """A link to a file of the repository names one that exists."""
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_shows_a_table_of_the_demo():
    """The table in the README is one that the demo prints, but for its figures: those are of one run."""
    from abate.cli.demo.settings import FULL
    from abate.cli.demo.table import HEADINGS, ROWS, headline

    shown = re.search(rf"^{re.escape(headline(FULL))}\n\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    assert shown is not None
    heading, *lines = [re.split(r"  +", line.strip()) for line in shown[1].strip().splitlines()]
    assert heading == list(HEADINGS)
    assert [label for label, *_ in lines] == list(ROWS)
    assert all(len(figures) == len(HEADINGS) for _, *figures in lines)


def test_the_guide_shows_what_its_scenario_prints(capsys, tmp_path, monkeypatch):
    """The table in the guide of the simulator is that of the scenario above it."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "simulate.md").read_text()
    Path("outage.toml").write_text(next(code for _, code, _, _ in SNIPPET.findall(page) if "# outage.toml" in code))
    assert main(["sim", "outage.toml"]) == 0
    assert f"```text\n{capsys.readouterr().out}```" in page


def test_the_readme_shows_what_a_report_prints():
    """But for the seconds, which chance decides."""
    (shown,) = re.findall(r"print\(abate\.report\(error\)\)  # (.+)", README.read_text())
    namespace = {"__name__": "__main__", "abate": abate}
    exec("@abate.retry(on=ConnectionError)\ndef load(order): raise ConnectionError", namespace)
    with VirtualClock(), pytest.raises(ConnectionError) as raised:
        namespace["load"](42)
    seconds = re.compile(r"[\d.]+ s")
    assert seconds.sub("N s", str(abate.report(raised.value))) == seconds.sub("N s", shown)
