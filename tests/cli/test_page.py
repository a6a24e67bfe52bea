"""`abate page`: what it runs, what it refuses, how it ends."""

import argparse
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

import abate
from abate.cli import page as command

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
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(command.TOKEN, raising=False)
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
        (["page_app", "--host", "0.0.0.0"], "needs a token"),
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


def test_the_token_may_come_from_the_environment(app_file):
    """It is not printed, and the page asks for it."""
    line = [sys.executable, "-c", RUN, "page", "page_app", "--port", "0"]
    environment = {**os.environ, command.TOKEN: "hush"}
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            said = process.stderr.readline()
            address = said.split()[-1].partition("?")[0]
            assert "hush" not in said
            assert httpx.get(address).status_code == 401
            assert httpx.get(address, params={"token": "hush"}).status_code == 200
        finally:
            process.kill()
