"""Runs one operation in the middle of another, of the same thread: as a finalizer or a signal handler does.

`at_every_bytecode` interrupts an operation at each bytecode of this package that it runs, once each on an object of its
own. That is more often than an interpreter does, which runs handlers at calls, jumps back and allocations only. An
operation that hangs fails the test.

`raised_at` lets a handler raise, at the points where an interpreter runs handlers: when a function of Python begins,
when one of C has returned to it, and when a loop jumps back.
"""

import contextlib
import dis
import functools
import os
import sys
import threading
import traceback
from functools import partial

import abate

PACKAGE = os.path.dirname(abate.__file__)
PATIENCE = 60.0
"""Seconds after which an operation is taken to hang."""
MAX_STEPS = 5000


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
    """Run `operation`, and `interruption` before its bytecode number `step`: return whether it had that many.

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


def at_every_bytecode(make, operation, interruption, where=PACKAGE, steps=range(1, MAX_STEPS)):
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


class Interrupted(BaseException):
    """What a signal handler raises."""


def raised_at(step, operation, where=PACKAGE, error=Interrupted):
    """Run `operation`, and raise at point number `step` at which a handler may run; return whether there was one."""
    seen = 0

    def point():
        nonlocal seen
        seen += 1
        if seen == step:
            raise error

    def trace(frame, event, _):
        if where not in frame.f_code.co_filename or frame.f_code.co_filename == __file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "call" or (event == "opcode" and frame.f_lasti in _loops(frame.f_code)):
            point()
        return trace

    def profile(frame, event, _):
        if event == "c_return" and where in frame.f_code.co_filename and frame.f_code.co_filename != __file__:
            point()

    before, profiled = sys.gettrace(), sys.getprofile()
    sys.setprofile(profile)
    sys.settrace(trace)
    try:
        operation()
    except error:
        pass
    finally:
        sys.settrace(before)
        sys.setprofile(profiled)
    return seen >= step


@functools.cache
def _loops(code):
    """Where the loops of a function jump back."""
    return {one.offset for one in dis.get_instructions(code) if "JUMP_BACKWARD" in one.opname}


def raised_at_every_point(make, operation, where=PACKAGE, done=((),), error=Interrupted, every=1):
    """For each point of an operation, or for one in a number of points: make a thing, raise there, and check the thing.

    `done` are ways to see what has happened, as lists of notes: one of them has to be right.
    """

    def tried(step, notes):
        thing = make()
        if not raised_at(step, partial(operation, thing), where, error):
            return None
        thing.notes += notes
        try:
            thing.check()
        except AssertionError as failure:
            failure.add_note(f"raised at point {step}")
            return failure
        return thing

    def body():
        for step in range(1, MAX_STEPS, every):
            failure = None
            for notes in done:
                failure = tried(step, notes)
                if not isinstance(failure, AssertionError):
                    break
            if failure is None:
                assert step > 1, "nothing was interrupted"
                return step - 1
            if isinstance(failure, AssertionError):
                raise failure
        raise AssertionError("the operation does not end")

    return guarded(body)


@contextlib.contextmanager
def inside(section):
    """The block is in the middle of an operation of its own thread."""
    with section.lock:
        section.busy = True
        yield
        section.busy = False
    section.run_deferred()


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
