"""A queue in memory, in a forked child: nothing that threads of the parent were doing holds up what is added there."""

import os
import threading

import pytest

import abate
from abate.testing import VirtualClock
from tests.reentry import PACKAGE, PATIENCE, interrupted_at
from tests.stores.processes import forks, in_child

pytestmark = [forks, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]

OPERATIONS = {
    "take": lambda queue: queue.take(1),
    "get": lambda queue: queue.get(timeout=0),
    "add": lambda queue: queue.add("new"),
    "raise": lambda queue: queue.add("one", priority=2),
    "done": lambda queue: queue.done("held"),
    "done again": lambda queue: (queue.add("held"), queue.done("held")),
    "due": lambda queue: (queue._clock.advance(9.0), queue.take(9)),
    "cancel": lambda queue: queue.cancel("later"),
}
EVERY = 67
"""One bytecode of this many is tried; `done` alone has few."""


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_a_fork_while_another_thread_is_in_the_middle_of_an_operation(operation):
    """At any bytecode of it: each key that is added in the child is delivered there once."""

    def tried(step):
        queue = abate.WorkQueue(clock=VirtualClock(start=100.0))
        queue.add("held")
        queue.take(1)
        queue.add("one")
        queue.add("two", priority=1)
        queue.add_after("later", 5.0)
        there, go, reached = threading.Event(), threading.Event(), []

        def pause():
            reached.append(True)
            there.set()
            go.wait(PATIENCE)

        def run():
            interrupted_at(step, lambda: operation(queue), pause, os.path.join(PACKAGE, "work"))
            there.set()

        def child():
            for key in ("held", "one", "two", "later"):
                queue.add(key)
            return sorted(set(queue.take(100)) - {"new"}), queue.take(100)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert there.wait(PATIENCE)
        try:
            assert in_child(child) == "(['held', 'later', 'one', 'two'], [])", f"forked before bytecode {step}"
        finally:
            go.set()
            thread.join(PATIENCE)
        return reached

    every = 9 if operation is OPERATIONS["done"] else EVERY
    tries = next(number for number, step in enumerate(range(1, 5000, every)) if not tried(step))
    assert tries > 1


def test_a_key_that_the_parent_has_in_hand_is_handled_in_a_child_that_adds_it():
    """The parent goes on with it; the child runs the controller by itself."""
    begun, go = threading.Event(), threading.Event()

    @abate.controller(workers=1)
    def reconcile(key):
        if os.getpid() == parent:
            begun.set()
            assert go.wait(PATIENCE)

    def child():
        before = reconcile.depth().leased
        reconcile.add("order 42")
        return before, dict(reconcile.run(drain=True)), reconcile.waiting()

    parent = os.getpid()
    reconcile.add("order 42")
    thread = threading.Thread(target=lambda: reconcile.run(drain=True), daemon=True)
    thread.start()
    assert begun.wait(PATIENCE)
    assert in_child(child) == "(0, {'done': 1}, 0)"
    go.set()
    thread.join(PATIENCE)
    assert reconcile.depth().leased == 0


def test_a_worker_that_forks_may_end_its_key_in_the_child():
    """Once; a drain there does not wait for keys of the parent."""
    queue = abate.WorkQueue()
    queue.add("one")
    queue.add("two")
    assert queue.take(2) == ["one", "two"]

    def child():
        queue.drain(timeout=0)
        queue.done("one")
        try:
            queue.done("one")
        except ValueError:
            return "refused"

    assert in_child(child) == "refused"
    assert queue.in_hand == 2


def test_a_fork_by_a_signal_handler_inside_an_operation():
    """The operation goes on in both processes; no key is lost or stays in hand."""

    def tried(step):
        queue, forked, taken = abate.WorkQueue(clock=VirtualClock()), [], []
        for key in ("one", "two", "three"):
            queue.add(key)
        take, where = (lambda: taken.extend(queue.take(1))), os.path.join(PACKAGE, "work")
        interrupted_at(step, take, lambda: forked.append(os.fork()), where)
        if not forked:
            return False
        if forked[0] == 0:
            fine = False
            try:
                queue.done(*taken)
                queue.add("one")
                fine = queue.in_hand == 0 and sorted(queue.take(9)) == ["one", "three", "two"]
            finally:
                os._exit(0 if fine else 1)
        assert os.waitpid(forked[0], 0)[1] == 0, f"forked before bytecode {step}"
        assert queue.in_hand == 1
        return True

    tries = next(number for number, step in enumerate(range(1, 5000, EVERY)) if not tried(step))
    assert tries > 1
