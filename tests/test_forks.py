"""What is kept through forks is told of them, in the right process."""

import os

import pytest

from abate import forks

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
    """Before the fork, after it in the parent, and after it in the child."""
    kept = forks.register(Kept())
    assert in_child(lambda: kept.told) == "['before', 'child']"
    assert kept.told == ["before", "parent"]


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
