"""`abate queue`: looking into stores, redriving, waiting for the end."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate.cli import main
from abate.cli.terminal import escape
from abate.stores import open_store
from abate.testing import VirtualClock
from tests.cli.commands import GUARD, abate_command, started, until


@pytest.fixture
def url(tmp_path):
    """The URL of a store with one message of each kind."""
    url = f"sqlite:///{tmp_path}/work.db"
    with open_store(url) as store:
        orders = store.queue("orders")
        for key in ("dead", "leased", "ready"):
            orders.add(key, f"body of {key}")
        orders.add("delayed", after=3600.0)
        dead, _ = orders.receive(2)
        orders.bury(dead, "no \x1b[31maddress", trace="Traceback:\n  line\x07 1")
        store.queue("mail").send("hello")
    return url


def test_ls_shows_what_waits_in_each_queue(url, capsys):
    """One line per queue, under headings."""
    assert main(["queue", "ls", url]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["queue", "ready", "delayed", "leased", "dead", "oldest"]
    assert [row[:5] for row in rows[1:]] == [["mail", "1", "0", "0", "0"], ["orders", "1", "1", "1", "1"]]


def test_ls_for_machines_is_json(url, capsys):
    """--json has the same facts by name."""
    assert main(["queue", "ls", "--json", url]) == 0
    mail, orders = json.loads(capsys.readouterr().out)
    assert (mail["queue"], mail["ready"], mail["age"] >= 0) == ("mail", 1, True)
    assert {name: orders[name] for name in ("ready", "delayed", "leased", "dead")} == dict.fromkeys(
        ("ready", "delayed", "leased", "dead"), 1
    )


def test_dead_shows_why_without_letting_control_characters_through(url, capsys):
    """Keys, reasons and traces are escaped: nothing that a peer sent reaches the terminal raw."""
    assert main(["queue", "dead", url, "--trace"]) == 0
    printed = capsys.readouterr().out
    assert r"no \x1b[31maddress" in printed
    assert r"  line\x07 1" in printed
    assert all(letter == "\n" or letter.isprintable() for letter in printed)
    assert main(["queue", "dead", url, "orders"]) == 0
    assert "Traceback" not in capsys.readouterr().out


def test_dead_for_machines_has_all_of_a_letter(url, capsys):
    """--json has body, reason and trace as they were."""
    assert main(["queue", "dead", url, "--json"]) == 0
    (letter,) = json.loads(capsys.readouterr().out)
    assert {name: letter[name] for name in ("queue", "key", "body", "kind", "reason", "receives", "attributes")} == {
        "queue": "orders",
        "key": "dead",
        "body": "body of dead",
        "kind": "permanent",
        "reason": "no \x1b[31maddress",
        "receives": 1,
        "attributes": {},
    }


def test_dead_of_a_queue_without_any_says_so(url, capsys):
    """No letters is no error."""
    assert main(["queue", "dead", url, "mail"]) == 0
    assert capsys.readouterr().out == "no dead letters\n"


def test_dead_shows_no_more_than_the_limit(url, capsys):
    """Those that died last come first, and the limit holds for each queue."""
    with open_store(url) as store:
        mail = store.queue("mail")
        for name in ("first", "second", "third"):
            mail.add(name)
        for message in mail.receive(9):
            mail.bury(message, "returned")
    assert main(["queue", "dead", url, "mail", "--limit", "2", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert main(["queue", "dead", url, "--limit", "0"]) == 2


def test_redrive_brings_dead_letters_back(url, capsys):
    """By key, or all of them; keys that are not dead are told apart by the exit code."""
    assert main(["queue", "redrive", url, "orders", "dead", "ready"]) == 1
    out, err = capsys.readouterr()
    assert (out, "1 of the 2 keys" in err) == ("redriven to orders: 1\n", True)
    with open_store(url) as store:
        assert store.queue("orders").depth().dead == 0
    assert main(["queue", "redrive", url, "orders", "--all"]) == 0
    assert capsys.readouterr().out == "redriven to orders: 0\n"


def test_redrive_takes_keys_that_look_like_options(url, capsys):
    """Behind -- everything is a key."""
    with open_store(url) as store:
        store.queue("mail").add("--all")
        for message in store.queue("mail").receive(9):
            store.queue("mail").bury(message, "returned")
    assert main(["queue", "redrive", url, "mail", "--", "--all"]) == 0
    assert capsys.readouterr().out == "redriven to mail: 1\n"


def test_purge_deletes_dead_letters(url, capsys):
    """By key, or all of them; what is not dead is left alone."""
    assert main(["queue", "purge", url, "orders", "ready"]) == 1
    out, err = capsys.readouterr()
    assert (out, "1 of the 1 keys" in err) == ("purged from orders: 0\n", True)
    assert main(["queue", "purge", url, "orders", "--all"]) == 0
    assert capsys.readouterr().out == "purged from orders: 1\n"
    with open_store(url) as store:
        depth = store.queue("orders").depth()
    assert (depth.ready, depth.delayed, depth.leased, depth.dead) == (1, 1, 1, 0)


@pytest.mark.parametrize("deed", ["redrive", "purge"])
@pytest.mark.parametrize("words", [[], ["dead", "--all"]])
def test_redrive_and_purge_want_either_keys_or_all(url, deed, words):
    """Nothing is redriven or deleted by accident."""
    with pytest.raises(SystemExit, match="2"):
        main(["queue", deed, url, "orders", *words])
    with open_store(url) as store:
        assert store.queue("orders").depth().dead == 1


def test_drain_waits_until_the_last_message_is_done(url):
    """It ends with 0 when nothing is ready, delayed or leased; dead letters don't count."""
    with open_store(url) as store, started("queue", "drain", url, "mail") as process:
        mail = store.queue("mail")
        (message,) = mail.receive()
        mail.add("later", after=0.3)
        mail.done(message)
        until(lambda: mail.depth().ready == 1)
        assert process.poll() is None
        mail.bury(mail.receive()[0], "undeliverable")
        assert process.wait(GUARD) == 0
        assert process.stdout.read() == b"mail is empty; dead letters: 1\n"


def test_drain_ends_with_1_at_its_timeout(tmp_path, capsys):
    """The timeout is kept to the second, and what was left is said."""
    url = f"sqlite:///{tmp_path}/work.db"
    with VirtualClock(start=1e9) as clock:
        with open_store(url) as store:
            store.queue("orders").add("later", after=3600.0)
        assert main(["queue", "drain", url, "orders", "--timeout", "10"]) == 1
        assert clock.now() == pytest.approx(1e9 + 10.0)
    assert "not empty after 10 s: orders: 0 ready, 1 delayed, 0 leased" in capsys.readouterr().err


def test_drain_shows_its_progress_on_a_terminal_only(url):
    """On a terminal one line is redrawn; elsewhere nothing is said before the end."""
    words = ("queue", "drain", url, "orders", "--timeout", "0.6")
    assert abate_command(*words).stderr.count(b"ready") == 1
    spawn = f"import pty; pty.spawn({[sys.executable, '-m', 'abate', *words]!r})"
    shown = subprocess.run([sys.executable, "-c", spawn], capture_output=True, stdin=subprocess.DEVNULL, timeout=GUARD)
    assert b"\rorders: 1 ready, 1 delayed, 1 leased\x1b[K" in shown.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ls", "sqlite:///{}/nothing.db"], "there is no store"),
        (["ls", "sqlite:///"], "does not name a file"),
        (["ls", "memory:"], "memory:"),
        (["ls", "work.db"], "scheme"),
        (["ls", "mysql://user:secret@host/db"], "'mysql:'"),
        (["ls", "sqlite:///{}/text"], "not a database"),
        (["ls", "sqlite:///{}"], "is a directory"),
        (["dead", "sqlite:///{}/work.db", "nothing"], "there is no queue 'nothing'; there are mail, orders"),
        (["redrive", "sqlite:///{}/work.db", "nothing", "--all"], "there is no queue"),
        (["drain", "sqlite:///{}/work.db", "nothing"], "there is no queue"),
        (["drain", "sqlite:///{}/work.db", "orders", "--timeout", "-1"], "not -1.0"),
    ],
)
def test_errors_are_one_clear_line(url, tmp_path, capsys, words, said):
    """Exit code 2, no traceback, no secrets, and no file that was not there before."""
    (tmp_path / "text").write_text("no database at all, but long enough to be looked at as one" * 20)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert main(["queue", *(word.format(tmp_path) for word in words)]) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert (out, line.startswith("abate: "), said in line, "secret" in line) == ("", True, True, False)
    assert sorted(path.name for path in tmp_path.iterdir() if "-" not in path.name) == before


@given(st.text())
def test_plain_text_is_printable_and_on_one_line(text):
    """Whatever a peer sent; what is printable stays as it is."""
    shown = escape(text)
    assert shown.isprintable()
    if text.isprintable():
        assert shown == text


def test_who_stops_reading_hears_no_complaint(url):
    """`abate queue ls | head -0` ends without a traceback."""
    shell = f"{sys.executable} -m abate queue ls {url} | true"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, timeout=GUARD)
    assert done.stderr == b""
