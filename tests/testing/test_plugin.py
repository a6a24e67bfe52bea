"""The fixtures of the pytest plugin, under the runners of async tests that people use, each in a pytest of its own."""

import importlib.util

import pytest

pytest_plugins = ["pytester"]

TIMEOUT = 60.0
"""Seconds after which a pytest counts as hung."""

USES = """
import asyncio, functools, threading, time, unittest

import abate, anyio, pytest
from abate.testing import Script, VirtualClock

policy = abate.Policy(on=OSError, backoff=[0.001])

def flaky():
    return Script(OSError(), OSError(), "fine")

async def waits_on(clock):
    "Call a policy in this task, in a task of its own, and in a thread that gets a copy of the context."
    del clock.waits[:]
    assert await policy.acall(flaky().acall) == "fine"
    async with anyio.create_task_group() as group:
        group.start_soon(policy.acall, flaky().acall)
    await anyio.to_thread.run_sync(policy.call, flaky())
    assert clock.waits == [0.001] * 6

async def is_off():
    script = flaky()
    with pytest.raises(OSError):
        await policy.acall(script.acall)
    assert len(script.calls) == 1
    with pytest.raises(OSError):
        await anyio.to_thread.run_sync(policy.call, script)
    assert len(script.calls) == 2
"""
"""What the generated tests share. If a clock has no effect, they fail rather than wait."""


@pytest.fixture
def run_pytest(pytester):
    """Run pytest in a process of its own on a test file; the tests in it use what `USES` defines."""

    def run(source, **outcomes):
        pytester.makepyfile(uses=USES, test_it=f"from uses import *\n{source}")
        options = "-p", "no:cacheprovider", "-p", "no:randomly"
        pytester.runpytest_subprocess(*options, timeout=TIMEOUT).assert_outcomes(**outcomes)

    return run


def test_the_plugin_gives_fixtures(run_pytest):
    """Wherever abate is installed, pytest knows abate_clock, abate_events and abate_off."""
    run_pytest(
        """
def test_time(abate_clock, abate_events):
    abate.Policy(on=OSError, backoff=[9.0]).call(Script(OSError(), "fine"))
    assert abate_clock.waits == [9.0]
    assert len(abate_events) == 3

def test_off(abate_off):
    with pytest.raises(OSError):
        abate.Policy(on=OSError).call(Script(OSError()))

def test_asyncio_run(abate_clock):
    asyncio.run(waits_on(abate_clock))
""",
        passed=3,
    )


@pytest.mark.parametrize("scope", ["function", "module", "session"])
def test_anyio_runs_async_fixtures_and_tests_in_a_task_that_was_started_before(run_pytest, scope):
    """An async fixture of any scope starts the task of the runner, before the clock is entered."""
    run_pytest(
        f"""
pytestmark = pytest.mark.anyio

@pytest.fixture(scope="session", params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param

@pytest.fixture(scope="{scope}")
async def client():
    yield "client"

@pytest.fixture
async def entered_in_a_fixture(client, abate_clock):
    await policy.acall(flaky().acall)
    yield
    await policy.acall(flaky().acall)
    assert abate_clock.waits == [0.001] * 4

async def test_time(client, abate_clock, abate_events):
    await waits_on(abate_clock)
    assert len(abate_events.of(abate.events.Recovered)) == 3

async def test_real_time_again(client):
    started = time.monotonic()
    await policy.acall(flaky().acall)
    assert time.monotonic() >= started + 0.002

async def test_off(client, abate_off):
    await is_off()

async def test_time_in_a_fixture(entered_in_a_fixture):
    pass

class TestMethods:
    async def test_time(self, client, abate_clock, abate_off):
        del abate_clock.waits[:]
        await is_off()
        assert abate_clock.waits == []
""",
        passed=10,
    )


def test_controllers_are_reset_between_tests(run_pytest):
    """Before the test, for what another test has left, and after it, for tests without the fixture."""
    run_pytest(
        """
@abate.controller(backoff=[50.0])
async def reconcile(key):
    raise ConnectionError("no answer")

reconcile.add("added when it was imported")

@pytest.fixture(autouse=True)
def in_virtual_time(abate_reset, abate_clock):
    pass

@pytest.mark.parametrize("time", [1, 2])
def test_keys(time):
    assert reconcile.waiting() == 0
    reconcile.add("a")
    assert reconcile.run(drain=True) == {"retry": 1}
    assert reconcile.delayed() == {"a": 50.0}

@pytest.fixture(scope="module", autouse=True)
def after_all():
    yield
    assert reconcile.waiting() == 0
""",
        passed=2,
    )


def test_a_clock_of_the_tests_own_wins(run_pytest):
    """A test that enters a clock uses that one; a thread that is started without a context has the machine's."""
    run_pytest(
        """
@pytest.fixture(scope="module")
async def client():
    return "client"

@pytest.mark.anyio
async def test_own_clock(client, abate_clock):
    with VirtualClock() as own:
        await waits_on(own)
    assert abate_clock.waits == []
    await waits_on(abate_clock)

def test_thread(abate_clock):
    thread = threading.Thread(target=policy.call, args=[flaky()])
    thread.start()
    thread.join()
    assert abate_clock.waits == []
""",
        passed=3,
    )


def test_fixtures_hold_in_async_test_cases_of_unittest(run_pytest):
    """`IsolatedAsyncioTestCase` copies its context before fixtures are set up; `enterContext` works as well."""
    run_pytest(
        """
@pytest.fixture(autouse=True)
def clock(request):
    if "abate_clock" in request.fixturenames:
        request.cls.clock = request.getfixturevalue("abate_clock")

@pytest.mark.usefixtures("abate_clock")
class WithFixture(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        await policy.acall(flaky().acall)
        assert self.clock.waits == [0.001] * 2

    async def test_time(self):
        await waits_on(self.clock)

@pytest.mark.usefixtures("abate_off")
class Off(unittest.IsolatedAsyncioTestCase):
    async def test_off(self):
        await is_off()

class WithoutFixture(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.clock = self.enterContext(VirtualClock())

    async def test_time(self):
        await waits_on(self.clock)
""",
        passed=3,
    )


@pytest.mark.skipif(importlib.util.find_spec("pytest_asyncio") is None, reason="pytest-asyncio is not installed")
@pytest.mark.parametrize("scope", ["function", "module", "session"])
def test_pytest_asyncio_has_one_loop_for_many_tests(run_pytest, scope):
    """The loop of a module or session runs the test in a context of its own."""
    run_pytest(
        f"""
import pytest_asyncio

pytestmark = pytest.mark.asyncio(loop_scope="{scope}")

@pytest_asyncio.fixture(scope="{scope}", loop_scope="{scope}")
async def client():
    yield "client"

@pytest_asyncio.fixture(loop_scope="{scope}")
async def entered_in_a_fixture(client, abate_clock):
    await policy.acall(flaky().acall)
    yield
    await policy.acall(flaky().acall)
    assert abate_clock.waits == [0.001] * 4

async def test_time(client, abate_clock):
    await waits_on(abate_clock)

async def test_off(client, abate_off):
    await is_off()

async def test_time_in_a_fixture(entered_in_a_fixture):
    pass
""",
        passed=3,
    )


@pytest.mark.skipif(importlib.util.find_spec("pytest_trio") is None, reason="pytest-trio is not installed")
def test_pytest_trio_runs_fixtures_and_tests_in_tasks_of_their_own(run_pytest):
    """Each async fixture is a task beside the test."""
    run_pytest(
        """
@pytest.fixture
async def client():
    yield "client"

@pytest.fixture
async def entered_in_a_fixture(client, abate_clock):
    await policy.acall(flaky().acall)
    yield
    await policy.acall(flaky().acall)
    assert abate_clock.waits == [0.001] * 4

@pytest.mark.trio
async def test_time(client, abate_clock):
    await waits_on(abate_clock)

@pytest.mark.trio
async def test_off(client, abate_off):
    await is_off()

@pytest.mark.trio
async def test_time_in_a_fixture(entered_in_a_fixture):
    pass
""",
        passed=3,
    )
