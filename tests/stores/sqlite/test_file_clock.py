"""The time in a SQLite file, while the machine's clock is set or the machine restarts."""

import os
import subprocess
import sys
import time

import pytest

from abate.stores import open_store
from abate.stores.sqlite import file_clock
from tests.stores.processes import keys

KIND = "sqlite"
HOUR = 3600.0


class Machine:
    """What a machine says of the time; tests set its clock, let time pass and start it again."""

    def __init__(self):
        self.wall, self.up, self.name = 1_700_000_000.0, 500.0, "first"

    def passes(self, seconds):
        self.wall += seconds
        self.up += seconds

    def starts(self, wall):
        self.wall, self.up, self.name = wall, 20.0, self.name + " again"


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(file_clock, "seconds_since_boot", lambda: machine.up)
    monkeypatch.setattr(file_clock, "boot_id", lambda: machine.name)
    monkeypatch.setattr(time, "time", lambda: machine.wall)
    monkeypatch.setattr("abate.clock.MachineClock.wall", lambda clock: machine.wall)
    return machine


@pytest.fixture(params=["sqlite", "memory:"])
def url(request, tmp_path):
    return request.param if request.param == "memory:" else f"sqlite:///{tmp_path}/work.db"


@pytest.fixture
def store(machine, url):
    """Opened after the machine is there."""
    with open_store(url) as opened:
        yield opened


@pytest.fixture
def queue(store):
    return store.queue("orders", lease=30.0)


@pytest.mark.parametrize("step", [-HOUR, 31.0, HOUR, -1e9])
def test_setting_the_clock_changes_nothing(queue, machine, step):
    """What was ready is ready, a delay is as long as was asked for, and a lease is over when it would have been."""
    queue.add("ready")
    queue.add("leased", priority=1)
    queue.add("delayed", after=60.0)
    (held,) = queue.receive()
    machine.wall += step
    depth = queue.depth()
    assert (depth.ready, depth.delayed, depth.leased, depth.age) == (1, 1, 1, 0.0)
    assert keys(queue.receive(10)) == ["ready"]
    queue.add("new")
    assert keys(queue.receive(10)) == ["new"]
    machine.passes(29.0)
    assert queue.receive(10) == []
    assert queue.extend([held]) == []
    machine.passes(31.0)
    assert set(keys(queue.receive(10))) == {"ready", "leased", "delayed", "new"}
    assert queue.extend([held]) == [held]


def test_the_dead_are_dated_by_the_clock_as_it_is(queue, machine):
    """People read that date."""
    machine.wall += HOUR
    queue.add("a")
    queue.bury(queue.receive()[0], "it has no address")
    assert queue.dead()[0].died == machine.wall


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("step", [-HOUR, HOUR, 1e9])
def test_who_opens_the_file_later_has_the_same_time(store, url, machine, step):
    """A process whose clock says something else has no effect on others."""
    store.queue("orders").add("delayed", after=60.0)
    machine.wall += step
    with open_store(url) as other:
        assert other.now() == store.now()
        other.queue("orders").add("now")
        assert keys(store.queue("orders").receive(10)) == ["now"]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_machine_that_starts_again_goes_by_its_clock(url, machine):
    """Time has passed while it was off."""
    with open_store(url) as store:
        store.queue("orders").add("a", after=60.0)
    machine.starts(wall=machine.wall + 61.0)
    with open_store(url) as store:
        assert keys(store.queue("orders").receive(10)) == ["a"]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("how", ["start", "snapshot"])
def test_time_goes_on_where_it_was_if_the_clock_is_behind(url, machine, how):
    """After a start with a clock from 1970, or a return to a snapshot: ready is ready, and a delay ends in time."""
    with open_store(url) as store:
        queue = store.queue("orders")
        machine.passes(100.0)
        queue.add("ready")
        queue.add("delayed", after=60.0)
        if how == "start":
            machine.starts(wall=5.0)
        else:
            machine.passes(-100.0)
    with open_store(url) as store:
        queue = store.queue("orders")
        assert keys(queue.receive(10)) == ["ready"]
        machine.passes(60.5)
        assert "delayed" in keys(queue.receive(10))
    with open_store(url) as store:  # it is written down
        assert store.now() == pytest.approx(1_700_000_160.5)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_instants_are_written_down_now_and_then(store, machine):
    """Not with each transaction."""
    queue, marks = store.queue("orders"), []
    for n in range(8):
        queue.add(f"key {n}")
        marks += store.file.read("SELECT mark FROM instant")
        machine.passes(0.5)
    assert len(set(marks)) == 4
    assert max(marks)[0] >= store.now() - 1.5


def test_a_machine_without_a_name_for_its_start_computes_one(monkeypatch):
    """It stays while the clock goes with the machine, and changes when the clock is set by hours."""
    monkeypatch.setattr("builtins.open", lambda *_, **__: (_ for _ in ()).throw(FileNotFoundError()))
    monkeypatch.setattr(file_clock, "seconds_since_boot", lambda: machine.up)
    monkeypatch.setattr(time, "time", lambda: machine.wall)
    machine = Machine()
    machine.wall = 1_700_000_100.0 + machine.up  # in the middle of what counts as one start
    first = file_clock.boot_id()
    machine.passes(1e6)
    assert file_clock.boot_id() == first
    machine.wall += HOUR
    assert file_clock.boot_id() != first


def test_the_machine_says_when_it_started():
    """Time goes on, at the pace of the machine's, and the name of the start does not change."""
    before, begun = file_clock.seconds_since_boot(), time.monotonic()
    time.sleep(0.01)
    assert file_clock.seconds_since_boot() - before == pytest.approx(time.monotonic() - begun, abs=0.005)
    assert file_clock.boot_id() == file_clock.boot_id() != ""


def test_an_older_kernel_has_the_start_of_the_machine_alone(monkeypatch):
    """Nothing there counts from another start."""
    monkeypatch.setattr(os, "readlink", lambda path: file_clock.MACHINE)
    first = file_clock.boot_id()
    monkeypatch.setattr(os, "readlink", lambda path: (_ for _ in ()).throw(FileNotFoundError()))
    assert file_clock.boot_id() == first
    monkeypatch.setattr(os, "readlink", lambda path: "time:[1]")
    assert file_clock.boot_id() != first


def test_a_container_that_counts_from_another_start_shares_the_leases(tmp_path):
    """Its clock since the start is a day ahead: what is leased here for an hour is leased there."""
    elsewhere = ["unshare", "-T", "--boottime", "86400"]
    try:
        subprocess.run([*elsewhere, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no other namespace of time can be made here")
    url = f"sqlite:///{tmp_path}/work.db"
    with open_store(url) as store:
        queue = store.queue("orders", lease=HOUR)
        queue.add("leased", priority=1)
        queue.add("ready")
        assert keys(queue.receive()) == ["leased"]
        program = f"import abate; print([m.key for m in abate.open_store({url!r}).queue('orders').receive(2)])"
        there = subprocess.run([*elsewhere, sys.executable, "-c", program], check=True, capture_output=True, text=True)
        assert there.stdout == "['ready']\n"
