"""The command line."""

import subprocess
import sys

import pytest

import abate
from abate.cli import COMMANDS, demo, main


def test_the_demo_prints_both_ways_side_by_side(capsys):
    """`abate demo` shows attempts, peak and recovery of the naive loop beside abate's."""
    assert main(["demo"]) == 0
    printed = capsys.readouterr().out
    for label, _ in demo.ROWS:
        assert label in printed


def test_in_the_demo_abate_is_calmer_on_every_measure():
    """Fewer attempts, a far lower peak, a quicker recovery, and every controller gets through."""
    naive, calm = demo.play(demo.naive), demo.play(demo.calm())
    assert calm.attempts < 0.5 * naive.attempts
    assert calm.attempts_in_outage < 0.5 * naive.attempts_in_outage
    assert calm.peak < 0.25 * naive.peak
    assert calm.recovered < naive.recovered
    assert naive.attempts - naive.attempts_in_outage >= demo.CONTROLLERS
    assert calm.attempts - calm.attempts_in_outage >= demo.CONTROLLERS


def test_the_same_demo_twice_is_the_same():
    """The demo has no chance in it but what is seeded."""
    assert demo.play(demo.calm()) == demo.play(demo.calm())


def test_the_module_runs_as_the_command():
    """`python -m abate --version` is `abate --version`."""
    done = subprocess.run([sys.executable, "-m", "abate", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"abate {abate.__version__}"


def test_a_wrong_command_is_named(capsys):
    """An unknown subcommand ends with a usage error that lists the known ones."""
    with pytest.raises(SystemExit) as ended:
        main(["nonsense"])
    assert ended.value.code == 2
    assert "demo" in capsys.readouterr().err


def test_without_words_the_help_is_printed(capsys):
    """`abate` alone names every command."""
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n    {command} " in printed for command in COMMANDS)


def test_a_command_does_not_load_the_others():
    """A job that runs every minute pays neither for an event loop nor for a store that it doesn't use."""
    code = (
        "import sys; from abate.cli import main; code = main(['exec', '--', 'true']);"
        "print(code, *{'asyncio', 'logging', 'sqlite3', 'abate.testing', 'abate.work'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.stdout == "0\n"
