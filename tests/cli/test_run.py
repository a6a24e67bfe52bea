"""`abate run`: finding what to run, draining at a signal, surviving kill -9, progress, health."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from abate.cli import main
from abate.cli.health_server import HealthServer
from abate.cli.run import summary
from abate.stores import open_store
from abate.work.service import Health
from tests.cli.commands import GUARD, abate_command, line, lines, started, until

APP = """
import pathlib, time
import abate

log = pathlib.Path("log")
gate = pathlib.Path("gate")

def note(word):
    with log.open("a") as file:
        file.write(f"{word}\\n")

@abate.consumer(workers=2, backoff=[0.0])
def orders(message):
    note(f"began {message.key}")
    while message.body == "slow" and not gate.exists():
        time.sleep(0.01)
    if message.body == "bad":
        raise abate.PermanentFailure("no \\x1b address")
    note(f"done {message.key}")

@abate.controller()
def reconcile(key):
    note(f"done {key}")

@abate.controller(name="other.leader", resync=0.2, keys=lambda: ["r1", "r2"], leader=True)
def named(key):
    note(f"done {key}")

@abate.controller(resync=0.2, keys=lambda: ["r1", "r2"], leader=True)
def resynced(key):
    note(f"done {key}")

class inner:
    reconcile = reconcile

def plain(key): ...
"""
URL = "sqlite:///work.db"


@pytest.fixture
def app(tmp_path, monkeypatch):
    """The directory of an app, as the current one."""
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fill(queue: str, *keys: str, body: str = "") -> None:
    """Put messages into the app's store."""
    with open_store(URL) as store:
        for key in keys:
            store.queue(queue).add(key, body)


def depth(queue: str):
    """What is in a queue of the app's store."""
    with open_store(URL) as store:
        return store.queue(queue).depth()


# -- what is run


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("app:orders", []),
        ("app:inner.reconcile", []),
        ("app:reconcile", ["--queue", "other"]),
        ("app:orders", ["--queue", "other"]),
    ],
)
def test_it_works_off_the_queue_of_its_name_or_the_one_named(app, target, words):
    """A consumer and a controller alike; --drain ends with the work, and the summary is logged."""
    name = words[-1] if words else target.replace(".", ":").rsplit(":", 1)[1]
    fill(name, "a", "b", "c")
    done = abate_command("run", target, "--store", URL, "--drain", *words)
    assert (done.returncode, done.stdout) == (0, b"")
    assert sorted(text for text in lines(app / "log") if "done" in text) == ["done a", "done b", "done c"]
    assert "started" in done.stderr.decode().splitlines()[0]
    assert "ended: 3 done" in done.stderr.decode().splitlines()[-1]
    assert len(done.stderr.splitlines()) == 2, "one line per message would be noise"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("resynced", ["--queue", "other"]),
        ("resynced", ["--lease", "5"]),
        ("resynced", ["--queue", "other", "--lease", "5"]),
        ("named", ["--queue", "other"]),
    ],
)
def test_a_leader_is_elected_beside_the_queue_of_work(app, target, words):
    """Whatever queue and lease are given: workers see keys alone, and the leader's lease is not one of them."""
    with started("run", f"app:{target}", "--store", URL, *words) as process:
        until(lambda: len(lines(app / "log")) >= 4)
        process.send_signal(signal.SIGTERM)
        _, logged = process.communicate(timeout=GUARD)
    assert set(lines(app / "log")) == {"done r1", "done r2"}
    assert logged.count(b"this process leads") == 1
    assert b"failed" not in logged
    name = "other" if "--queue" in words else "resynced"
    with open_store(URL) as store:
        assert set(store.queues()) == {name, f"{name}.leader"}


def test_each_queue_has_a_leader_of_its_own(app):
    """One service on two queues of a store: both are resynced."""
    with (
        started("run", "app:resynced", "--store", URL, "--queue", "eu") as one,
        started("run", "app:resynced", "--store", URL, "--queue", "us") as other,
    ):
        for process in (one, other):
            assert b"this process leads" in process.stderr.readline() + process.stderr.readline()


@pytest.mark.parametrize("target", ["app:orders", "app:resynced"])
def test_no_work_is_taken_from_where_a_leader_is_elected(app, target):
    """Its key would be handed to the function."""
    done = abate_command("run", target, "--store", URL, "--queue", "orders.leader", "--drain")
    assert done.returncode == 2
    assert b"a queue of work must not be called 'orders.leader'" in done.stderr


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("app", "not 'app'"),
        ("app:", "not 'app:'"),
        ("./app.py:orders", "not './app.py:orders'"),
        ("nothing:orders", "there is no module 'nothing'"),
        ("app.deeper:orders", "there is no module 'app.deeper'"),
        ("app:nothing", "app has no 'nothing'"),
        ("app:inner.nothing", "app has no 'inner.nothing'"),
        ("app:plain", "app:plain is a function: expected a controller or consumer"),
        ("broken:thing", "broken:thing can't be imported"),
        ("needy:thing", "needy:thing can't be imported"),
    ],
)
def test_what_is_not_there_is_said_in_one_clear_line(app, capsys, monkeypatch, target, said):
    """Exit code 2; a traceback only for what the app's own module does wrong."""
    (app / "broken.py").write_text("1 / 0")
    (app / "needy.py").write_text("import no_such_library")
    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        assert main(["run", target]) == 2
    finally:
        sys.modules.pop("app", None)
    text = capsys.readouterr().err
    assert said in text.splitlines()[-1]
    assert ("Traceback" in text) == target.startswith(("broken", "needy"))
    assert len(text.splitlines()) == 1 or "Traceback" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no source"),
        (["--store", "mysql://user:secret@host"], "'mysql:'"),
        (["--store", URL, "--workers", "0"], "workers"),
        (["--store", URL, "--grace", "-1"], "grace"),
        (["--queue", "x"], "--store"),
        (["--lease", "5"], "--store"),
        (["--store", URL, "--lease", "0"], "--lease"),
        (["--store", URL, "--health", "65536"], "65536"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_clear_line(app, words, said):
    """Exit code 2, without a traceback, and without the secrets of a URL."""
    done = abate_command("run", "app:orders", *words)
    text = done.stderr.decode()
    assert (done.returncode, said in text.splitlines()[-1]) == (2, True)
    assert not re.search("secret|Traceback", text)


def test_a_port_that_is_taken_is_said(app):
    """The service doesn't start without the health it was asked for."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = abate_command("run", "app:reconcile", "--health", port)
    assert (done.returncode, str(port) in done.stderr.decode(), b"Traceback" in done.stderr) == (2, True, False)


# -- how it ends


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_is_in_hand_finish_and_leaves_the_rest(app, number):
    """Two workers finish their messages; the other eight stay in the store, and nothing is lost."""
    fill("orders", *map(str, range(10)), body="slow")
    with started("run", "app:orders", "--store", URL, "--grace", GUARD) as process:
        until(lambda: len(lines(app / "log")) == 2)
        process.send_signal(number)
        (app / "gate").touch()
        assert process.wait(GUARD) == 0
        assert b"ended: 2 done" in process.stderr.read()
    assert len([text for text in lines(app / "log") if text.startswith("done")]) == 2
    assert (depth("orders").ready, depth("orders").leased) == (8, 0)


def test_a_second_signal_breaks_it_off(app):
    """A second signal skips the grace: the exit code is 128 plus its number, and the message stays in the store."""
    fill("orders", "a", body="slow")
    with started("run", "app:orders", "--store", URL, "--health", "0") as process:
        port = served_port(process)
        until(lambda: lines(app / "log") == ["began a"])
        process.terminate()
        until(lambda: get(port, "/readyz")[0] == 503)
        process.terminate()
        assert process.wait(GUARD) == 128 + signal.SIGTERM
    assert sum((depth("orders").leased, depth("orders").ready)) == 1


def test_kill_9_loses_nothing_and_a_restart_finishes_the_work(app):
    """What was in flight comes back when its lease has run out."""
    keys = [str(number) for number in range(20)]
    fill("orders", *keys[:2], body="slow")
    fill("orders", *keys[2:])
    with started("run", "app:orders", "--store", URL, "--lease", "0.5") as process:
        until(lambda: len(lines(app / "log")) == 2)
        process.send_signal(signal.SIGKILL)
        process.wait(GUARD)
    (app / "gate").touch()
    with started("run", "app:orders", "--store", URL) as process:
        until(lambda: {f"done {key}" for key in keys} <= set(lines(app / "log")))
        until(lambda: depth("orders").waiting + depth("orders").leased == 0)
        process.terminate()
        assert process.wait(GUARD) == 0
    assert sorted(text for text in lines(app / "log") if text.startswith("done")) == sorted(
        f"done {key}" for key in keys
    )


# -- what is shown


def test_what_is_buried_is_logged_without_control_characters(app):
    """The reason is a peer's words."""
    fill("orders", "a", body="bad")
    done = abate_command("run", "app:orders", "--store", URL, "--drain")
    assert b"ended: 1 buried" in done.stderr
    assert rb"no \x1b address" in done.stderr
    assert b"\x1b" not in done.stderr


def test_a_terminal_shows_one_line_of_progress(app):
    """Done, failed, in flight, waiting and the oldest, redrawn in place; the summary stays."""
    fill("orders", *map(str, range(5)), body="slow")
    spawn = f"import pty; pty.spawn({line('run', 'app:orders', '--store', URL)!r})"
    with subprocess.Popen([sys.executable, "-c", spawn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        shown = b""

        def until_shown(line):
            nonlocal shown
            while not re.search(rb"\rorders: " + line + rb"\x1b\[K", shown):
                piece = process.stdout.read1()
                assert piece, shown
                shown += piece

        until_shown(rb"0 done, 0 failed, 2 in flight, 3 waiting, oldest [\d.]+ s")
        process.stdin.write(b"\x03")
        process.stdin.flush()
        until_shown(rb"0 done, 0 failed, 2 in flight, 3 waiting, oldest [\d.]+ s, stopping")
        (app / "gate").touch()  # not before the stop was seen, or another one may be taken
        shown += process.stdout.read()
        assert process.wait(GUARD) == 0
    assert shown.endswith(b"\r\x1b[Kabate: orders: ended: 2 done\r\n")


# -- health


def get(port: int, path: str, method: str = "GET"):
    """The status and the JSON of a request."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=GUARD) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def served_port(process) -> int:
    """The port that the log names."""
    for text in process.stderr:
        found = re.search(rb"health on http://127.0.0.1:(\d+)/", text)
        if found:
            return int(found[1])
    raise AssertionError("no port was named")


def test_health_says_whether_it_lives_and_takes_work(app):
    """Both are 200 while it works; while it drains it lives, but takes nothing."""
    fill("orders", "a", body="slow")
    with started("run", "app:orders", "--store", URL, "--health", "0", "--grace", GUARD) as process:
        port = served_port(process)
        until(lambda: lines(app / "log") == ["began a"])
        assert get(port, "/healthz")[0] == 200
        status, health = get(port, "/readyz?verbose")
        assert (status, health["ready"], health["in_hand"], health["failing"]) == (200, True, 1, None)
        assert (get(port, "/")[0], get(port, "/healthz", "POST")[0]) == (404, 405)
        process.terminate()
        until(lambda: get(port, "/readyz")[0] == 503)
        assert get(port, "/healthz")[0] == 200
        (app / "gate").touch()
        assert process.wait(GUARD) == 0


def test_health_is_served_on_loopback_whatever_is_asked():
    """What is no request gets no answer, and doesn't keep others from theirs."""

    async def ask(port: int, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        return answer

    async def scenario() -> None:
        async with HealthServer(lambda: Health(live=False, ready=False), "127.0.0.1", 0) as address:
            port = int(address.rstrip("/").rpartition(":")[2])
            assert await ask(port, b"nonsense") == b""
            assert await ask(port, b"") == b""
            assert (await ask(port, b"\xff\xfe\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
            assert (await ask(port, b"GET /healthz HTTP/1.1\r\nHost: [::1]:1\r\n\r\n")).startswith(b"HTTP/1.1 503 ")
            assert (await ask(port, b"HEAD /healthz HTTP/1.0\r\n\r\n")).endswith(b"\r\n\r\n")

    asyncio.run(asyncio.wait_for(scenario(), GUARD))


@pytest.mark.parametrize(
    ("tally", "said"),
    [
        ({}, "nothing to do"),
        ({"done": 302, "lost": 2}, "302 done, 2 leases lost (the messages come again)"),
        ({"lost": 1}, "1 lease lost (the message comes again)"),
    ],
)
def test_the_summary_speaks_of_leases_that_were_lost_not_of_messages(tally, said):
    """A message whose lease ran out is handed out again."""
    assert summary(tally) == said
