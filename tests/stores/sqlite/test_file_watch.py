"""A file is watched for writes of other processes, without polling where the system can tell."""

import sys

import pytest

from abate.stores import message_waits
from abate.stores.sqlite.file_watch import FileWatch
from tests.stores.processes import FOR_EVER, Thread, keys, output, python, waiting

KIND = "sqlite"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has inotify")
ADD = "import abate, sys; abate.open_store(sys.argv[1]).queue('orders').add('a')"


@pytest.fixture
def clock():
    """The machine's."""
    return None


@linux
def test_a_write_ends_the_wait(tmp_path):
    """Now, or since the last wait; so does an interrupt."""
    path = tmp_path / "log"
    path.touch()
    watch = FileWatch(str(path))
    watch.arm()
    thread = Thread(watch.wait, FOR_EVER)
    path.write_bytes(b"1")
    assert thread.answer() is True
    path.write_bytes(b"2")
    assert watch.wait(FOR_EVER)
    watch.interrupt()
    assert not watch.wait(FOR_EVER)
    assert not watch.wait(0.0)


@linux
def test_a_file_that_was_replaced_is_armed_anew(tmp_path):
    """What is written to the new file ends the wait."""
    path, other = tmp_path / "log", tmp_path / "other"
    path.touch()
    watch = FileWatch(str(path))
    assert [watch.arm(), watch.arm()] == [True, False]
    other.touch()
    other.replace(path)
    assert watch.arm()
    watch.wait(0.0)
    path.write_bytes(b"1")
    watch.wait(FOR_EVER)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        watch.arm()


def test_a_system_without_inotify_has_no_watch(tmp_path, monkeypatch):
    """The file is polled there."""
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(OSError, match="only Linux has inotify"):
        FileWatch(str(tmp_path / "log"))


@linux
def test_a_message_of_another_process_is_noticed_without_polling(store, url, monkeypatch):
    """Also the second one, and however long its commit takes after its last write."""
    monkeypatch.setattr(message_waits, "MAX_WATCH", FOR_EVER)
    monkeypatch.setattr(message_waits, "MIN_POLL", FOR_EVER)
    queue = store.queue("orders")
    for _ in range(2):
        thread = waiting(store, queue)
        output(python(ADD, url))
        (message,) = thread.answer()
        queue.done(message)


def test_a_message_of_another_process_is_noticed_by_polling_without_a_watch(store, url):
    """Its log can't be watched."""

    def no_watch():
        raise OSError("no instances are left")

    store.wakeups._make_watch = no_watch
    thread = waiting(store, store.queue("orders"))
    output(python(ADD, url))
    assert keys(thread.answer()) == ["a"]


@linux
def test_a_commit_that_comes_after_the_last_write_is_noticed(store, url, monkeypatch):
    """The file is polled for a moment after it was written to."""
    monkeypatch.setattr(message_waits, "MAX_WATCH", FOR_EVER)
    queue, changed, looks = store.queue("orders"), store.wakeups._changed, []

    def not_at_first():
        looks.append(1)
        return len(looks) > 4 and changed()

    store.wakeups._changed = not_at_first
    thread = waiting(store, queue)
    output(python(ADD, url))
    assert keys(thread.answer()) == ["a"]


@linux
def test_threads_of_this_process_are_woken_while_one_watches(store, monkeypatch):
    """The one that watches as well as the others."""
    monkeypatch.setattr(message_waits, "MAX_WATCH", FOR_EVER)
    queue, others = store.queue("orders"), store.queue("mails")
    threads = [waiting(store, queue), waiting(store, others)]
    others.add("b")
    queue.add("a")
    assert [keys(thread.answer()) for thread in threads] == [["a"], ["b"]]


@linux
def test_writes_of_this_process_to_other_queues_do_not_keep_the_watch_busy(store, monkeypatch):
    """It looks at most once in a while."""
    looks, changed = [], store.wakeups._changed
    monkeypatch.setattr(store.wakeups, "_changed", lambda: looks.append(1) or changed())
    monkeypatch.setattr(message_waits, "MAX_WATCH_PAUSE", FOR_EVER)
    thread = waiting(store, store.queue("orders"))
    for number in range(20):
        store.queue("mails").add(str(number))
    assert len(looks) <= 2
    store.queue("orders").add("a")
    assert keys(thread.answer()) == ["a"]


@linux
def test_a_python_without_ctypes_polls(tmp_path):
    """A store opens and receives messages there too."""
    code = """if True:
        import sys
        sys.modules["ctypes"] = sys.modules["_ctypes"] = None
        import abate.stores
        queue = abate.stores.open_store(sys.argv[1]).queue("orders")
        queue.add("a", after=0.01)
        print(queue.receive(wait=10.0)[0].key)
    """
    assert output(python(code, f"sqlite:///{tmp_path}/other.db")) == ["a"]
