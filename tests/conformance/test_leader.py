"""Which process leads, whatever the store: one at a time, and another one after it was killed."""

import subprocess
import sys

import pytest

from tests.cli.commands import lines, until
from tests.conformance.conftest import SHARED, STORES

PROGRAM = """
import sys
import abate
import abate.work.controller

abate.work.controller.LEASE = 0.6
url, path = sys.argv[1:]

def keys():
    with open(path, "a") as file:
        file.write("listed\\n")
    return ["a"]

@abate.controller(name="orders", store=url, resync=0.1, keys=keys, leader=True)
def reconcile(key):
    assert key == "a"

print("up", flush=True)
reconcile.run()
"""


@pytest.mark.parametrize("kind", SHARED)
def test_another_process_leads_when_the_leader_was_killed(kind, tmp_path):
    """With kill -9, when its lease has run out; and not before."""
    url = STORES[kind](tmp_path)
    paths = tmp_path / "first", tmp_path / "second"
    processes = []
    try:
        for path in paths:
            command = [sys.executable, "-c", PROGRAM, url, str(path)]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            assert processes[-1].stdout.readline() == "up\n"
            until(lambda: lines(paths[0]))
        seen = len(lines(paths[0]))
        until(lambda: len(lines(paths[0])) >= seen + 10)
        assert lines(paths[1]) == []
        processes[0].kill()
        until(lambda: lines(paths[1]))
    finally:
        for process in processes:
            process.kill()
            process.communicate()
