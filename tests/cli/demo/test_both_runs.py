"""The demo, as a process with real children; the short one."""

import os
import re
import signal
import subprocess
import xml.etree.ElementTree as ElementTree
from contextlib import contextmanager

import pytest

from abate.cli.demo.both_runs import save
from abate.cli.demo.table import ROWS
from tests.cli.commands import line, running, started, until

GUARD = 240.0
"""Seconds after which it hangs. It takes 16, and its own limit for each way is 20 after the outage."""


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A whole run without a terminal: what it printed, and the folders for its files and its temporary ones."""
    files, temporary = tmp_path_factory.mktemp("files"), tmp_path_factory.mktemp("temporary")
    words = line("demo", "--fast", "--report", files / "storm.html", "--picture", files / "storm.svg")
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=GUARD,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert done.returncode == 0, done.stderr
    return done, files, temporary


@pytest.fixture
def figures(played):
    """The table's figures, by row: naive and abate."""
    lines = [re.split(r"  +", line) for line in played[0].stdout.splitlines()]
    found = {label: (first, second) for label, first, second, _ in (line for line in lines if len(line) == 4) if label}
    assert tuple(found) == ROWS
    return {label: [float(cell.split(" ")[0]) for cell in cells] for label, cells in found.items()}


def test_abate_sends_a_fifth_at_most_during_the_outage(figures):
    """It is about a thirtieth."""
    naive, abated = figures["attempts during the outage"]
    assert naive >= 5 * 200 * 0.9, "five volleys of 200 controllers"
    assert 0 < abated <= 0.2 * naive


def test_abates_peak_after_the_outage_is_a_quarter_at_most(figures):
    """It is about a tenth."""
    naive, abated = figures["peak per 100 ms after the outage"]
    assert 0 < abated <= 0.25 * naive


def test_no_work_is_lost(figures):
    """Neither way loses a change."""
    assert figures["work lost"] == [0, 0]


def test_all_attempts_that_were_needed_were_made(figures):
    """Each of 200 controllers lists and writes, after the outage."""
    in_all, during = figures["attempts in all"], figures["attempts during the outage"]
    assert all(total - early >= 2 * 200 for total, early in zip(in_all, during, strict=True))


def test_the_report_is_one_file_that_needs_no_other(played):
    """The picture is inside, both curves in it, and nothing is loaded from anywhere."""
    page = (played[1] / "storm.html").read_text()
    assert 'class="naive"' in page
    assert 'class="abate"' in page
    assert all(label in page for label in ROWS)
    assert not re.search(r"<script|<link|<img|src=|href=|@import|url\(", page)
    assert re.findall(r"https?://[^\"]+", page) == ["http://www.w3.org/2000/svg"]


def test_the_picture_is_a_file_of_its_own(played):
    """It is well-formed, and says in words what it shows."""
    root = ElementTree.parse(played[1] / "storm.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "naive backoff" in root.attrib["aria-label"]


def test_without_a_terminal_it_says_how_far_it_is_in_lines(played):
    """They go to stderr, without control characters; stdout has the results."""
    done = played[0]
    assert done.stderr.startswith("abate: 200 controllers in 2 processes")
    assert re.search(r"^abate: with naive backoff, .*attempts", done.stderr, re.MULTILINE)
    assert re.search(r"^abate: with abate, .*attempts", done.stderr, re.MULTILINE)
    assert "abate's live page: " in done.stderr
    assert "\r" not in done.stderr + done.stdout
    assert "\x1b" not in done.stderr + done.stdout
    assert done.stdout.startswith("200 controllers")


def test_nothing_is_left_behind(played):
    """The store's folder is gone."""
    assert list(played[2].iterdir()) == []


@contextmanager
def underway(temporary):
    """A demo whose three children (the API, two with controllers) run: the process, and their ids."""
    with started("demo", "--fast", env={**os.environ, "TMPDIR": str(temporary)}) as process:
        until(lambda: len(children(process.pid)) == 3)
        yield process, children(process.pid)


def children(parent):
    """The ids of a process's children."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    rows = [tuple(map(int, row.split())) for row in listed.splitlines()]
    return [pid for pid, ppid in rows if ppid == parent]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_however_it_ends_no_process_and_no_file_is_left(number, code, tmp_path):
    """Ctrl-C, a polite end and kill -9 all take the children along, and the store's folder."""
    with underway(tmp_path) as (process, pids):
        process.send_signal(number)
        assert process.wait(GUARD) == code
        until(lambda: not any(map(running, pids)))
        until(lambda: not list(tmp_path.iterdir()))


def test_a_child_that_dies_ends_the_demo(tmp_path):
    """It says which one, and takes the others along."""
    with underway(tmp_path) as (process, pids):
        while b"attempts" not in process.stderr.readline():
            assert process.poll() is None
        os.kill(min(pids), signal.SIGKILL)  # the API, which is started first
        _, errors = process.communicate(timeout=GUARD)
        assert process.returncode == 1
        assert b"abate.cli.demo.api_process ended with code -9" in errors
        assert not any(map(running, pids))


@pytest.mark.parametrize("option", ["--report", "--picture"])
def test_a_file_that_cannot_be_written_is_refused_at_once(option, tmp_path):
    """Before the demo starts, which takes a minute."""
    done = subprocess.run(line("demo", option, tmp_path / "no" / "file"), capture_output=True, text=True, timeout=GUARD)
    assert done.returncode == 2
    assert f"{tmp_path}/no/file can't be written" in done.stderr


def test_by_default_the_report_is_a_temporary_file_that_stays(tmp_path, monkeypatch):
    """Its path is told."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = save("text", None)
    assert path.parent == tmp_path
    assert path.suffix == ".html"
    assert path.read_text() == "text"
