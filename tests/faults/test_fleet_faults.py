"""A fleet's shared budget when its store is disconnected, frozen, flushed or restarted, or a member is killed.

Guarantees under test: calls never wait for the store; the members together spend at most one budget, plus, while the
store is unavailable, each member's part of the reserve; after it is back, the limit is shared again.
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
"""Sixty retries a minute for the whole fleet; a test ends before its first retries leave the window."""
GUARD = 30.0
SPENDER = Path(__file__).with_name("spender.py")


class Spender:
    """A fleet member in a separate process."""

    def __init__(self, url, ratio=0.0):
        command = [sys.executable, str(SPENDER), url, str(ratio), str(RESERVE), str(WINDOW)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"
        self.last = {"spent": 0, "transitions": [], "degraded": False}

    def spend(self, deposits=0):
        """Let the member attempt fifty withdrawals, and return its total so far."""
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
def fleet(url, count=MEMBERS, ratio=0.0):
    members = []
    try:
        for _ in range(count):
            members.append(Spender(url, ratio))
        yield members
    finally:
        for member in members:
            member.end()


def spent(members):
    return sum(member.spend() for member in members)


def until(members, condition):
    """Let all members spend until the condition holds."""
    end = time.monotonic() + GUARD
    while not condition():
        assert time.monotonic() < end, [member.last for member in members]
        spent(members)
        time.sleep(0.1)


def spend_everything(members):
    """Let the members spend until the reserve is used up, and return the total."""
    until(members, lambda: sum(member.last["spent"] for member in members) >= RESERVE * WINDOW)
    return spent(members)


def degraded(members, expected):
    return lambda: all(member.last["degraded"] is expected for member in members)


def test_a_fleet_spends_one_budget(valkey):
    """The members together spend the whole reserve, and no more than it."""
    with fleet(f"{valkey.url}/0") as members:
        assert spend_everything(members) == RESERVE * WINDOW
        time.sleep(1.5)
        assert spent(members) <= RESERVE * WINDOW + 2 * RESERVE


@pytest.mark.parametrize("fault", ["disconnect", "discard", "freeze", "kill"])
def test_without_the_store_each_member_spends_its_part_and_sharing_resumes(valkey, fault):
    """The overspend is at most each member's part of the reserve; one event marks the start and one the end."""
    with Proxy(valkey.port) as proxy, contextlib.ExitStack() as stack:
        members = stack.enter_context(fleet(f"redis://127.0.0.1:{proxy.port}/0"))
        before = spent(members)
        if fault == "disconnect":
            proxy.discard_all = True
            proxy.cut()
        elif fault == "discard":
            proxy.discard_all = True
        elif fault == "freeze":
            frozen = stack.enter_context(contextlib.ExitStack())
            frozen.enter_context(valkey.stopped())
        else:
            valkey.kill()
        until(members, degraded(members, True))
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            total = spent(members)
            time.sleep(0.1)
        assert before <= total <= 2 * RESERVE * WINDOW + 3 * RESERVE * MEMBERS
        if fault == "freeze":
            frozen.close()
        elif fault == "kill":
            valkey.start()
        proxy.discard_all = False
        proxy.cut()
        until(members, lambda: all(member.last["transitions"] == [True, False] for member in members))
        for member in members:
            assert member.last["slowest"] < 1.0, "a call waited for the store"


def test_a_flushed_store_recovers(valkey):
    """The counts are lost, so at most a second budget is spent; no member becomes degraded."""
    with fleet(f"{valkey.url}/0") as members:
        spend_everything(members)
        with driver.Redis.from_url(valkey.url) as admin:
            admin.flushall()
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            total = spent(members)
            time.sleep(0.1)
        assert RESERVE * WINDOW <= total <= 2 * RESERVE * WINDOW + 5 * RESERVE
        assert not any(member.last["transitions"] for member in members)


def test_a_process_starts_without_the_store_and_joins_later(valkey):
    """With `required=False` a process starts with a local budget, and joins the fleet when the store is reachable."""
    valkey.kill()
    with fleet(f"{valkey.url}/0", count=1) as (member,):
        assert member.spend() == 50
        assert member.last["degraded"]
        valkey.start()
        until([member], lambda: member.last["degraded"] is False)


def test_a_killed_member_does_not_change_the_fleets_budget(valkey):
    """The other members go on, and the fleet stays within one budget."""
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


def test_deposits_of_one_member_fund_retries_of_another(valkey):
    """After both have synced, deposits of one member allow withdrawals by another."""
    with fleet(f"{valkey.url}/0", count=2, ratio=0.5) as (rich, poor):
        until([poor], lambda: rich.spend() + poor.last["spent"] >= RESERVE * WINDOW)
        before = poor.last["spent"]
        rich.process.stdin.write("1000\n")
        rich.process.stdin.flush()
        rich.process.stdout.readline()
        until([poor], lambda: poor.last["spent"] > before + 50)
