"""One policy used by many calls at once: none sees another's errors or counts, and no failing part breaks a call."""

import asyncio
import os
import select
import signal
import sys
import threading

import pytest
import trio

import abate
from abate.testing import Recorder, VirtualClock

THREADS = 8
CALLS = 200


@pytest.fixture
def tiny_switches():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Mine(Exception):
    """An error that knows whose it is."""


def worker(policy, who, wrong):
    """Make calls that fail a known number of times; note whatever isn't this worker's own."""
    for n in range(CALLS):
        left = [n % 4]

        @policy
        def flaky(left=left, n=n):
            if left[0]:
                left[0] -= 1
                raise Mine(who, n)
            return who, n

        try:
            if flaky() != (who, n):
                wrong.append("result")
        except Mine as error:
            if error.args != (who, n) or n % 4 < 3 or abate.report(error).attempts != 3:
                wrong.append(error)
        else:
            if n % 4 == 3:
                wrong.append("should have given up")


def test_threads_on_one_policy_never_see_each_others_errors_or_counts(tiny_switches):
    """Eight threads through one policy: each gets its own results, errors and reports."""
    policy = abate.Policy(name="shared", on=Mine, backoff=[0.0], budget=abate.Budget.unlimited())
    wrong = []
    threads = [threading.Thread(target=worker, args=(policy, who, wrong)) for who in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def many_tasks(policy, gather):
    """Two hundred tasks that fail a known number of times and check what they get."""

    async def one(n):
        left = n % 4

        async def flaky():
            nonlocal left
            if left:
                left -= 1
                raise Mine(n)
            return n

        try:
            assert await policy.acall(flaky) == n
            assert n % 4 < 3
        except Mine as error:
            assert error.args == (n,)
            assert abate.report(error).attempts == 3

    return gather(one, range(200))


def test_tasks_on_one_policy_never_see_each_others_errors_or_counts():
    """Hundreds of tasks through one policy, under asyncio and trio: each gets its own."""
    policy = abate.Policy(name="shared", on=Mine, budget=abate.Budget.unlimited())

    async def in_asyncio(one, numbers):
        await asyncio.gather(*map(one, numbers))

    async def in_trio(one, numbers):
        async with trio.open_nursery() as nursery:
            for n in numbers:
                nursery.start_soon(one, n)

    with VirtualClock():
        asyncio.run(many_tasks(policy, in_asyncio))
    with VirtualClock():
        trio.run(many_tasks, policy, in_trio)


def test_a_raising_sink_changes_nothing(caplog):
    """A sink that fails is left alone and logged; the call and the other sinks go on."""

    def broken(event):
        raise RuntimeError("broken sink")

    calls = []

    @abate.retry(on=OSError, backoff=[0.0])
    def flaky():
        calls.append(1)
        if len(calls) < 3:
            raise OSError
        return "fine"

    abate.observe.install(broken)
    try:
        with VirtualClock(), Recorder() as seen:
            assert flaky() == "fine"
    finally:
        abate.observe.remove(broken)
    assert len(calls) == 3
    assert [type(event).__name__ for event in seen] == ["FirstFailure", "Retry", "Retry", "Recovered"]
    assert len([record for record in caplog.records if "broken" in record.getMessage()]) == 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_in_mid_use_keeps_policies_working(tiny_switches):
    """A child forked while other threads are in calls makes calls of its own, within a sane budget."""
    policy = abate.Policy(name="forked", on=Mine, backoff=[0.0], budget=abate.Budget(ratio=0.5, reserve=1.0))
    over = threading.Event()

    def hammer():
        while not over.is_set():
            worker(policy, 0, [])

    threads = [threading.Thread(target=hammer) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert in_a_child(lambda: child_is_sane(policy))
    finally:
        over.set()
        for thread in threads:
            thread.join()


def child_is_sane(policy) -> bool:
    """Successes deposit, a failure is retried, and the balance is not more than deposits can have earned."""
    before = policy.budget.balance()
    for _ in range(10):
        policy.call(int)
    tries = []

    def flaky():
        tries.append(1)
        if len(tries) < 2:
            raise Mine
        return "fine"

    return policy.call(flaky) == "fine" and before <= policy.budget.balance() <= before + 5.5


def in_a_child(check) -> bool:
    """Run `check` in a forked child; False if it fails or hangs."""
    read, write = os.pipe()
    # a tracer (of coverage) may hold a lock of its own in another thread, which the child would wait for
    tracer = sys.gettrace()
    sys.settrace(None)
    pid = os.fork()
    if pid:
        sys.settrace(tracer)
    else:
        try:
            os.write(write, b"y" if check() else b"n")
        finally:
            os._exit(0)
    os.close(write)
    answered, _, _ = select.select([read], [], [], 30)
    answer = os.read(read, 1) if answered else b""
    os.close(read)
    if not answered:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return answer == b"y"
