"""Depths of queues: which thread reads them, and the age of an empty queue."""

import threading

import abate
from abate.observe import snapshot
from abate.observe.queue_depths import read_depths
from abate.stores import Depth


class Service:
    """A service that records the thread that reads its depth."""

    def __init__(self, in_memory):
        self.in_memory = in_memory

    def depth(self):
        self.read_by = threading.current_thread()
        return Depth()


def test_a_queue_in_memory_is_read_directly():
    """The calling thread reads it, because it can't block."""
    service = Service(in_memory=True)
    (answer,) = read_depths([service])
    assert (answer.depth, answer.failing) == (Depth(), None)
    assert service.read_by is threading.current_thread()


def test_a_store_is_read_in_a_daemon_thread():
    """A read that never returns does not keep the program from ending."""
    service = Service(in_memory=False)
    (answer,) = read_depths([service])
    assert answer.depth == Depth()
    assert service.read_by is not threading.current_thread()
    assert service.read_by.daemon


def test_an_empty_queue_has_age_zero():
    """The age is 0.0 rather than missing, so that it can be drawn."""

    @abate.controller(name="empty of late")
    def reconcile(key): ...

    (view,) = [view for view in snapshot().queues if view.name == "empty of late"]
    assert (view.ready, view.delayed, view.age) == (0, 0, 0.0)
