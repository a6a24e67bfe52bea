"""`abate page`: what it runs, what it refuses, how it ends."""

import argparse
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import abate
from abate.cli import page as command
from abate.cli.listen_options import TOKEN

HUSH = "hush, a long secret"
GUARD = 30.0
"""Seconds after which a test takes it that something hangs."""


APP = """
import abate, time
policy = abate.Policy(name="app-policy", on=OSError)
number = 5

def main():
    policy.call(lambda: 1)
    print("called", flush=True)

async def amain():
    main()

def broken():
    raise RuntimeError("broken")

@abate.controller()
def reconcile(key):
    print("looked at", key, flush=True)

reconcile.add("orders/42")

def keeps():
    reconcile.run()

def drains():
    reconcile.run(drain=True)

def catches():
    try:
        print("sleeps", flush=True)
        while True:
            time.sleep(0.05)  # a signal just before a long sleep is handled after it, on some Pythons
    except KeyboardInterrupt:
        pass

def leaves_a_handler():
    import signal
    signal.signal(signal.SIGTERM, lambda *_: print("told", flush=True))
"""
TRIO = """
import threading, trio

async def sleep():
    try:
        threading.Timer(0.2, print, ("sleeps",), {"flush": True}).start()  # when Trio waits, rather than this task runs
        await trio.sleep(600)
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(0)
        print("cleans up", flush=True)

def main():
    trio.run(sleep)
"""
SCRIPT = """
import page_app
page_app.reconcile.run()
"""
RUN = """
import argparse, sys
from abate.cli import page
parser = argparse.ArgumentParser()
page.register(parser.add_subparsers())
options = parser.parse_args(sys.argv[1:])
sys.exit(options.run(options))
"""


@pytest.fixture
def app_file(tmp_path, monkeypatch):
    """The directory of an app, as the current one."""
    (tmp_path / "page_app.py").write_text(APP)
    (tmp_path / "page_trio.py").write_text(TRIO)
    (tmp_path / "page_script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(TOKEN, raising=False)
    source = Path(abate.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(source), *filter(None, [os.environ.get("PYTHONPATH")])]))
    return tmp_path


def refused(capsys, *words):
    """The exit code of the command and what it said."""
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    options = parser.parse_args(["page", *words])
    code = options.run(options)
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["page_app", "--host", "0.0.0.0"], "0.0.0.0 can be reached from other machines: set ABATE_PAGE_TOKEN to"),
        (["page_app", "--token", "short"], "--token has 5: expected a token of 16 to 1000 characters"),
        (["page_app", "--port", "70000"], "port must be"),
        (["page_nothing", "--port", "0"], "there is no module 'page_nothing'"),
        (["page_app:nothing", "--port", "0"], "page_app has no 'nothing'"),
        (["page_app:number", "--port", "0"], "page_app:number is a int"),
        (["page_app:", "--port", "0"], "expected a module"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(app_file, capsys, words, said):
    """With exit code 2 and the reason."""
    code, text = refused(capsys, *words)
    assert code == 2
    assert said in text


def test_a_program_that_fails_is_exit_code_1(app_file, capsys):
    """With its traceback."""
    code, text = refused(capsys, "page_app:broken", "--port", "0")
    assert code == 1
    assert "RuntimeError: broken" in text


@pytest.mark.parametrize(
    ("target", "word"),
    [("page_app:main", "called"), ("page_app:amain", "called"), ("page_app:reconcile", "looked at orders/42")],
)
def test_the_command_runs_a_program_with_its_page(app_file, target, word):
    """A function, a coroutine function, a controller: the page shows its policies, and SIGTERM ends it."""
    line = [sys.executable, "-c", RUN, "page", target, "--port", "0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            guard = threading.Timer(GUARD, process.kill)
            guard.start()
            address = process.stderr.readline().split()[-1]
            assert process.stdout.readline().strip() == word
            with httpx.stream("GET", f"{address}events", timeout=GUARD) as answer:
                assert any('"app-policy"' in text for text in answer.iter_lines())
            process.send_signal(signal.SIGTERM)
            assert process.wait(GUARD) == 0
        finally:
            guard.cancel()
            process.kill()


@contextmanager
def paged(target):
    """The command in a process of its own, once it has said where the page is."""
    line = [sys.executable, "-c", RUN, "page", target, "--port", "0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        guard = threading.Timer(GUARD, process.kill)
        guard.start()
        try:
            assert "the page is on" in process.stderr.readline()
            yield process
        finally:
            guard.cancel()
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("target", "word"),
    [
        ("page_app:keeps", "looked at orders/42"),
        ("page_script", "looked at orders/42"),
        ("page_app:catches", "sleeps"),
    ],
)
def test_one_signal_ends_the_program_and_the_page(app_file, target, word, number):
    """Though a controller that the program runs takes it, or the program catches the interrupt."""
    with paged(target) as process:
        assert process.stdout.readline().strip() == word
        process.send_signal(number)
        assert process.wait(GUARD) == 0
        assert process.stderr.read() == ""


def test_trio_ends_in_order_at_an_interrupt(app_file):
    """As it does without the page: tasks are cancelled, and clean up."""
    with paged("page_trio:main") as process:
        assert process.stdout.readline() == "sleeps\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(GUARD) == 0
        assert (process.stdout.read(), process.stderr.read()) == ("cleans up\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_page_outlives_a_program_that_ends_by_itself(app_file, number):
    """It ran a controller, which took no signal; the first one ends the page."""
    with paged("page_app:drains") as process:
        assert "the page stays" in process.stderr.readline()
        process.send_signal(number)
        assert process.wait(GUARD) == 0


def test_a_handler_that_the_program_has_left_does_not_keep_the_page(app_file):
    """It is called, and the page ends."""
    with paged("page_app:leaves_a_handler") as process:
        assert "the page stays" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(GUARD) == 0
        assert process.stdout.read() == "told\n"


def test_without_what_the_page_needs_the_command_says_what_to_install(app_file):
    """With exit code 2."""
    line = [sys.executable, "-c", f"import sys; sys.modules['starlette'] = None\n{RUN}", "page", "page_app"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=GUARD)
    assert done.returncode == 2
    assert "needs starlette: install abate[page]\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_token_may_come_from_the_environment(app_file):
    """It is not printed, and the page asks for it."""
    line = [sys.executable, "-c", RUN, "page", "page_app", "--port", "0"]
    environment = {**os.environ, TOKEN: HUSH}
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            said = process.stderr.readline()
            address = said.split()[-1]
            assert HUSH not in said
            assert httpx.get(address).status_code == 401
            assert httpx.post(address, data={"token": HUSH}).status_code == 303
        finally:
            process.kill()
