"""Registries list what is alive, whatever else happens meanwhile."""

import gc
import sys
from threading import Thread

from abate.registry import SWEEP, Registry


class Thing:
    pass


def test_objects_are_listed_in_the_order_in_which_they_came():
    """alive() returns the living ones, oldest first."""
    things = Registry()
    kept = [Thing() for _ in range(3)]
    for thing in kept:
        things.add(thing)
    del kept[1], thing
    assert things.alive() == kept


def test_dead_references_do_not_pile_up():
    """A registry to which objects come and go holds a bounded number of references."""
    things = Registry()
    for _ in range(10 * SWEEP):
        things.add(Thing())
    assert len(things._known) <= SWEEP


def test_threads_may_add_while_others_list():
    """Listing neither fails nor misses what was there throughout."""
    things, stays, errors = Registry(), Thing(), []
    things.add(stays)

    def work():
        try:
            for _ in range(3000):
                things.add(Thing())
                assert stays in things.alive()
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=work) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not errors


def test_finalizers_may_add_and_list():
    """An object finalized while the registry is being listed may use the registry itself."""
    things, seen = Registry(), []

    class Cycle:
        def __init__(self):
            self.me = self

        def __del__(self):
            things.add(self.__class__)
            seen.append(len(things.alive()))

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(500):
            things.add(Cycle())
            things.alive()
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert len(seen) == 500
