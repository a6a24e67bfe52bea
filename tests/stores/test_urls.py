"""URLs of stores, and the errors for wrong ones."""

import os
import subprocess
import sys

import pytest

from abate.stores import StoreUnreachable, open_store
from tests.clients.valkey_server import free_port


def test_three_slashes_begin_a_relative_path_and_four_an_absolute_one(tmp_path, monkeypatch):
    """Percent escapes in the path are decoded."""
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///here.db", f"sqlite:///{tmp_path}/there.db", "sqlite:///odd%3F%20%25.db?synchronous=full"):
        open_store(url).close()
    assert {name for name in os.listdir(tmp_path) if name.endswith(".db")} == {"here.db", "there.db", "odd? %.db"}


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("work.db", "begins with a scheme and a colon: expected 'memory:'"),
        ("", "begins with a scheme and a colon: expected 'memory:'"),
        ("mysql://me:secret@host/db", "there is no store 'mysql:': expected 'memory:', 'sqlite:///"),
        ("sqlite://me:secret@host/db", "'sqlite:' is followed by three slashes and a path"),
        ("sqlite:work.db", "'sqlite:' is followed by three slashes and a path"),
        ("sqlite:///", "'sqlite:///' does not name a file"),
        ("sqlite:///a%00b", "does not name a file"),
        ("sqlite:///:memory:", "a store in memory is 'memory:', not 'sqlite:///:memory:'"),
        ("memory://x", "the URL of a store in memory is 'memory:'"),
        ("sqlite:///a.db?synchronous=off", "synchronous must be one of 'normal', 'full', not 'off'"),
        ("sqlite:///a.db?timeout=soon", "timeout must be a number of seconds, not 'soon'"),
        ("sqlite:///a.db?timeout=-1", "timeout must be a number at least 0, not -1.0"),
        ("sqlite:///a.db?mode=ro", "has the options synchronous, timeout and shared, not 'mode'"),
    ],
)
def test_a_wrong_url_is_refused_and_no_password_is_shown(url, said, tmp_path, monkeypatch):
    """The error says what was expected and contains no password; no file is created."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as raised:
        open_store(url)
    assert said in str(raised.value)
    assert "secret" not in str(raised.value)
    assert os.listdir(tmp_path) == []


def test_a_url_that_is_not_a_string_is_a_type_error():
    """The error says what was expected."""
    with pytest.raises(TypeError, match="a store's URL must be a string"):
        open_store(None)


@pytest.mark.parametrize(("option", "expected"), [("", 1), ("?synchronous=normal", 1), ("?synchronous=FULL", 2)])
def test_the_url_sets_the_synchronous_mode(tmp_path, option, expected):
    """NORMAL is the default, FULL is an option; the journal mode is always WAL."""
    with open_store(f"sqlite:///{tmp_path}/work.db{option}") as store:
        assert store.file.read("PRAGMA synchronous") == [(expected,)]
        assert store.file.read("PRAGMA journal_mode") == [(b"wal",)]


def test_no_driver_is_imported_before_its_url_is_opened():
    """Importing abate.stores does not import sqlite3."""
    code = "import sys, abate.stores; print(*{'sqlite3', 'abate.stores.sqlite'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_an_unreachable_server_is_an_error_unless_required_is_false(scheme):
    """With required=False, limits are local, and using a queue raises."""
    url = f"{scheme}://127.0.0.1:{free_port()}/0"
    with pytest.raises(StoreUnreachable, match="127"):
        open_store(url)
    with open_store(url, required=False) as store:
        budget = store.budget("orders", ratio=0.0, reserve=1.0, window=10.0)
        assert sum(budget.try_withdraw() for _ in range(20)) == 10
        assert store.degraded
        with pytest.raises(StoreUnreachable):
            store.queue("orders").add("a")
