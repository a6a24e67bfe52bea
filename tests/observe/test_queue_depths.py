"""How deep queues are: who is asked where, and what a snapshot says of one that is empty."""

import threading

import abate
from abate.observe import snapshot
from abate.observe.queue_depths import read_depths
from abate.stores import Depth


class Service:
    """A service that notes by which thread it was asked."""

    def __init__(self, in_memory):
        self.in_memory = in_memory

    def depth(self):
        self.asked_by = threading.current_thread()
        return Depth()


def test_a_queue_in_memory_tells_at_once():
    """In the thread that asks: there is nothing to wait for."""
    service = Service(in_memory=True)
    (answer,) = read_depths([service])
    assert (answer.depth, answer.failing) == (Depth(), None)
    assert service.asked_by is threading.current_thread()


def test_a_store_is_asked_in_a_thread_that_keeps_no_program_from_ending():
    """It may hang for ever."""
    service = Service(in_memory=False)
    (answer,) = read_depths([service])
    assert answer.depth == Depth()
    assert service.asked_by is not threading.current_thread()
    assert service.asked_by.daemon


def test_where_nothing_waits_nothing_is_old():
    """The age of an empty queue is 0, for those who draw it."""

    @abate.controller(name="empty of late")
    def reconcile(key): ...

    (view,) = [view for view in snapshot().queues if view.name == "empty of late"]
    assert (view.ready, view.delayed, view.age) == (0, 0, 0.0)
