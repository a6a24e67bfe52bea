"""A budget of a fleet whose store is cut off, frozen, flushed or restarted, and members that are killed, for real.

What is promised: calls never wait for the store; all together spend no more than one budget allows, plus, while the
store is away, each member's part of the reserve; when it is back, limits are shared again.
"""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis as driver

from tests.clients.valkey_server import Valkey
from tests.faults.proxy import Proxy

MEMBERS = 3
RESERVE, WINDOW = 1.0, 60.0
"""Sixty retries a minute, of all together; a test is over before the first of them are forgotten."""
GUARD = 30.0
SPENDER = Path(__file__).with_name("spender.py")


class Spender:
    """A member in a process of its own."""

    def __init__(self, url, ratio=0.0):
        command = [sys.executable, str(SPENDER), url, str(ratio), str(RESERVE), str(WINDOW)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"
        self.last = {"spent": 0, "told": [], "degraded": False}

    def spend(self, deposits=0):
        """Let it ask for fifty retries: what it has spent so far."""
        self.process.stdin.write(f"{deposits}\n")
        self.process.stdin.flush()
        self.last = json.loads(self.process.stdout.readline())
        return self.last["spent"]

    def end(self):
        self.process.kill()
        self.process.wait(GUARD)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def valkey(tmp_path):
    server = Valkey(tmp_path)
    server.start()
    yield server
    server.kill()


@contextlib.contextmanager
def fleet(url, many=MEMBERS, ratio=0.0):
    members = []
    try:
        for _ in range(many):
            members.append(Spender(url, ratio))
        yield members
    finally:
        for member in members:
            member.end()


def spent(members):
    return sum(member.spend() for member in members)


def until(members, condition):
    """Let all of them spend until something is so."""
    end = time.monotonic() + GUARD
    while not condition():
        assert time.monotonic() < end, [member.last for member in members]
        spent(members)
        time.sleep(0.1)


def all_spent(members):
    """Let them spend until the last of it is gone."""
    until(members, lambda: sum(member.last["spent"] for member in members) >= RESERVE * WINDOW)
    return spent(members)


def degraded(members, so):
    return lambda: all(member.last["degraded"] is so for member in members)


def test_together_they_spend_one_budget(valkey):
    """All of the reserve, and none of it twice."""
    with fleet(f"{valkey.url}/0") as members:
        assert all_spent(members) == RESERVE * WINDOW
        time.sleep(1.5)
        assert spent(members) <= RESERVE * WINDOW + 2 * RESERVE


@pytest.mark.parametrize("way", ["cut", "swallow", "freeze", "kill"])
def test_without_the_store_each_has_its_part_and_it_heals(valkey, way):
    """Cut off, silent, frozen or gone: at most each one's part of the reserve more; said once, and once at the end."""
    with Proxy(valkey.port) as proxy, contextlib.ExitStack() as stack:
        members = stack.enter_context(fleet(f"redis://127.0.0.1:{proxy.port}/0"))
        before = spent(members)
        if way == "cut":
            proxy.swallow = True
            proxy.cut()
        elif way == "swallow":
            proxy.swallow = True
        elif way == "freeze":
            frozen = stack.enter_context(contextlib.ExitStack())
            frozen.enter_context(valkey.stopped())
        else:
            valkey.kill()
        until(members, degraded(members, True))
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            most = spent(members)
            time.sleep(0.1)
        assert before <= most <= 2 * RESERVE * WINDOW + 3 * RESERVE * MEMBERS
        if way == "freeze":
            frozen.close()
        elif way == "kill":
            valkey.start()
        proxy.swallow = False
        proxy.cut()
        until(members, lambda: all(member.last["told"] == [True, False] for member in members))
        for member in members:
            assert member.last["slowest"] < 1.0, "a call has waited for the store"


def test_a_flushed_store_heals_by_itself(valkey):
    """What was counted is gone with it: at worst a second budget is spent, and nobody goes alone for it."""
    with fleet(f"{valkey.url}/0") as members:
        all_spent(members)
        with driver.Redis.from_url(valkey.url) as admin:
            admin.flushall()
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            total = spent(members)
            time.sleep(0.1)
        assert RESERVE * WINDOW <= total <= 2 * RESERVE * WINDOW + 5 * RESERVE
        assert not any(member.last["told"] for member in members)


def test_a_process_starts_without_the_store_and_joins_when_it_is_there(valkey):
    """What is not required is not waited for: it has a budget of its own until then."""
    valkey.kill()
    with fleet(f"{valkey.url}/0", many=1) as (member,):
        assert member.spend() == 50
        assert member.last["degraded"]
        valkey.start()
        until([member], lambda: member.last["degraded"] is False)


def test_a_killed_member_takes_nothing_with_it_for_good(valkey):
    """Others go on, within the same budget; what it held leaves with the window."""
    with fleet(f"{valkey.url}/0") as members:
        spent(members)
        killed = members.pop()
        lost = killed.last["spent"]
        killed.end()
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            total = spent(members)
            time.sleep(0.1)
        assert lost < total + lost <= RESERVE * WINDOW + 5 * RESERVE


def test_what_one_earns_others_spend(valkey):
    """Deposits of one member pay for the retries of another, after a journey of each."""
    with fleet(f"{valkey.url}/0", many=2, ratio=0.5) as (rich, poor):
        until([poor], lambda: rich.spend() + poor.last["spent"] >= RESERVE * WINDOW)
        before = poor.last["spent"]
        rich.process.stdin.write("1000\n")
        rich.process.stdin.flush()
        rich.process.stdout.readline()
        until([poor], lambda: poor.last["spent"] > before + 50)
