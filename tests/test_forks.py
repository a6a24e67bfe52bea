"""What is kept through forks is told of them, in the right process."""

import os

import pytest

from abate import forks
from abate.registry import Registry
from abate.stores import open_store
from tests.reentry import Interrupted, guarded, raised_at

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def in_child(body):
    """Fork, run `body` in the child, and return what it writes."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, repr(body()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        answer = told.read()
    os.waitpid(pid, 0)
    return answer


class Kept:
    def __init__(self):
        self.told = []

    def before_fork(self):
        self.told.append("before")

    def after_fork_in_parent(self):
        self.told.append("parent")

    def after_fork(self):
        self.told.append("child")


def test_parent_and_child_are_each_told():
    """Before the fork, after it in the parent (once or more), and after it in the child."""
    kept = forks.register(Kept())
    assert in_child(lambda: kept.told) == "['before', 'child']"
    assert kept.told[0] == "before"
    assert set(kept.told[1:]) == {"parent"}


def test_a_child_of_a_child_is_told_again():
    """After a double fork, as daemons do it, the grandchild is told too."""
    kept = forks.register(Kept())
    assert in_child(lambda: in_child(lambda: kept.told)) == repr("['before', 'child', 'before', 'child']")


def test_what_is_gone_is_told_nothing():
    """Keeping is weak."""
    kept = forks.register(Kept())
    told = kept.told
    del kept
    assert in_child(lambda: told) == "[]"


def test_all_are_told_though_a_signal_handler_raises():
    """The one that was interrupted is told again, and its error is raised when all have been told."""

    class Soon(BaseException):
        """What a signal handler raises."""

    class Interrupting(Kept):
        def before_fork(self):
            super().before_fork()
            if len(self.told) == 1:
                raise Soon

    things = [forks.register(one) for one in (Kept(), Interrupting(), Kept())]
    with pytest.raises(Soon):
        forks._call_each(list(things), "before_fork")
    assert [one.told for one in things] == [["before"], ["before", "before"], ["before"]]


def test_one_that_always_raises_holds_up_no_other():
    """It is called twice, and then left."""

    class Broken(Kept):
        def after_fork(self):
            super().after_fork()
            raise ValueError

    things = [Kept(), Broken(), Kept()]
    with pytest.raises(ValueError):
        forks._call_each(list(things), "after_fork")
    assert [one.told for one in things] == [["child"], ["child", "child"], ["child"]]


def test_a_signal_handler_that_raises_in_a_fork_leaves_no_store_locked(tmp_path, monkeypatch):
    """Wherever it raises in the hooks: the interpreter drops that, so nobody else would notice."""

    def tried(step):
        for kind in ("_registered", "_with_before_fork"):
            monkeypatch.setattr(forks, kind, Registry())
        with open_store(f"sqlite:///{tmp_path}/{step}.db") as store:
            queue = store.queue("orders")

            def fork():
                for hook in (forks._before, forks._in_parent, forks._in_parent):
                    try:
                        hook()
                    except Interrupted:
                        pass

            found = raised_at(step, fork)
            assert guarded(lambda: queue.add("order 1")), f"raised at point {step}"
            assert queue.add("order 2")
            return found

    points = next(step for step in range(1, 1000) if not tried(step))
    assert points > 10
