"""Runs one operation in the middle of another, of the same thread: as a finalizer or a signal handler does.

`at_every_bytecode` interrupts an operation at each bytecode of this package that it runs, once each on an object of its
own. That is more often than an interpreter does, which runs handlers at calls, jumps back and allocations only. An
operation that hangs fails the test.
"""

import contextlib
import os
import sys
import threading
import traceback
from functools import partial

import abate

PACKAGE = os.path.dirname(abate.__file__)
PATIENCE = 60.0
"""Seconds after which an operation is taken to hang."""
MOST_STEPS = 5000


def guarded(body):
    """Run `body` in a thread of its own, and fail where it hangs; what it returned."""
    answer, failure = [], []

    def run():
        try:
            answer.append(body())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():
        frame = sys._current_frames().get(thread.ident)
        raise AssertionError("it hangs:\n" + "".join(traceback.format_stack(frame)))
    if failure:
        raise failure[0]
    return answer[0]


def interrupted_at(step, operation, interruption, where=PACKAGE):
    """Run `operation`, and `interruption` before its bytecode number `step`: did it have so many?

    With a step of None, before each of them.
    """
    seen = 0

    def trace(frame, event, _):
        nonlocal seen
        if where not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen += 1
            if step is None or seen == step:
                interruption()  # not traced itself
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # 3.12 looks for this when tracing begins, and not again
    sys.settrace(trace)
    try:
        operation()
    finally:
        sys.settrace(before)
    return step is None or seen >= step


def at_every_bytecode(make, operation, interruption, where=PACKAGE, steps=range(1, MOST_STEPS)):
    """For each bytecode of an operation: make a thing, run it there, interrupt it once, and check the thing.

    Operations are given as functions of the thing. What they raise is raised; `make().check()` is the last word.
    """

    def body():
        for step in steps:
            thing = make()
            if not interrupted_at(step, partial(operation, thing), partial(interruption, thing), where):
                assert step > steps[0], "nothing was interrupted"
                return step - 1
            try:
                thing.check()
            except BaseException as error:
                error.add_note(f"interrupted before bytecode {step}")
                raise
        raise AssertionError("the operation does not end")

    return guarded(body)


@contextlib.contextmanager
def held_elsewhere(section):
    """While the block runs, another thread is inside a section, and does not go on."""
    inside, over = threading.Event(), threading.Event()

    def hold():
        with section.lock:
            section.busy = True
            inside.set()
            over.wait(PATIENCE)
            section.busy = False

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    inside.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()
