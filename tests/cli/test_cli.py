"""The command line."""

import subprocess
import sys

import pytest

import abate
from abate.cli import COMMANDS, main


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
