"""A command as a child process: its signals, its time, its exit code.

The rules:

* The child has a process group of its own, and what is sent to it goes to the whole group. Where stdin is a terminal
  it stays in our group, or it could not read from there, and Ctrl-Z would miss it.
* SIGTERM, SIGINT and SIGHUP are passed on, and we wait for the child's end. Ctrl-C on a terminal reaches a child of
  our group by itself, and is not sent twice: many programs take a second one for an order to drop everything.
* A child whose time is up gets SIGTERM, and SIGKILL after `GRACE` seconds: it, and whatever is left of its group.
* Exit codes are a shell's: the command's own, 126 where it can't be run, 127 where there is none, 128 + n where
  signal n has killed it.

Handlers of signals do nothing but take note. Whoever waits looks at the notes, in one place, so that nothing is
interrupted half-way.
"""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

from abate import clock
from abate.errors import AbateError, AttemptTimeout

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
LOOK = 0.05
"""Seconds between two looks at a group whose leader has ended."""

NOT_RUNNABLE, NOT_FOUND, KILLED = 126, 127, 128
SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE)
"""Why a child can't be started now and may be in a while."""


class CommandFailed(AbateError):
    """The command ended with another exit code than 0, or could not be started; `shortage` is the machine's.

    >>> print(CommandFailed.ended(75), "-", CommandFailed.ended(-9))
    exit code 75 - killed by SIGKILL
    """

    def __init__(self, text: str, code: int, shortage: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.shortage = shortage

    @classmethod
    def ended(cls, status: int) -> CommandFailed:
        """Of an exit code as Python gives it: negative where a signal has killed the child."""
        if status >= 0:
            return cls(f"exit code {status}", status)
        try:
            name = signal.Signals(-status).name
        except ValueError:  # a real-time signal has a number only
            name = f"signal {-status}"
        return cls(f"killed by {name}", KILLED - status)

    @classmethod
    def not_started(cls, error: OSError) -> CommandFailed:
        """Of a command that can't be run."""
        if error.errno == errno.ENOENT:
            return cls("no such command", NOT_FOUND)
        return cls(f"can't be run: {error.strerror}", NOT_RUNNABLE, error.errno in SHORTAGES)


class Ended(BaseException):
    """A signal has asked us to end, and `code` is what to end with; nothing may be retried after that.

    >>> print(Ended(signal.SIGTERM, 143))
    ended by SIGTERM
    """

    def __init__(self, number: int, code: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.code = code


class Signals(clock.MachineClock):
    """Takes note of the signals that ask us to end; `asked` is the first. As a clock, its sleep is broken off by them.

    One that was ignored when we began (as nohup does it) stays ignored.
    """

    __slots__ = ("_before", "_read", "_unread", "_wakeup", "_write", "asked")

    ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self) -> None:
        self.asked: int | None = None
        self._unread: list[int] = []

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before: dict[int, Any] = {signal.SIGCHLD: signal.signal(signal.SIGCHLD, _nothing)}
        for number in self.ASKING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._read)
        os.close(self._write)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = self.asked or number
        self._unread.append(number)

    def unread(self) -> Sequence[int]:
        """The signals that have come since this was last asked."""
        new, self._unread = self._unread, []
        return new

    def check(self) -> None:
        """Raise `Ended` if a signal has asked for it."""
        if self.asked is not None:
            raise Ended(self.asked, KILLED + self.asked)

    def sleep(self, seconds: float) -> None:
        """Wait; a signal that asks us to end breaks it off."""
        until = self.now() + seconds
        self.check()
        while (left := until - self.now()) > 0:
            self.pause(left)
            self.check()

    def pause(self, seconds: float | None, *files: int) -> bool:
        """Wait until a signal comes (the end of a child is one), or one of the files can be read; is it a file?"""
        readable, _, _ = select.select([self._read, *files], [], [], seconds)
        if self._read in readable:
            os.read(self._read, 4096)
        return any(file in readable for file in files)


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    signals: Signals,
    *,
    stdin: int | None = None,
    timeout: float | None = None,
) -> None:
    """Run the command to its end, and raise unless that is exit code 0.

    `CommandFailed` carries the exit code, `AttemptTimeout` says that its time was up, and `Ended` that a signal which
    was passed on has ended it.
    """
    signals.check()
    child = _Child(command, environment, signals, stdin)
    status = child.wait(timeout)
    timed_out = status is None
    if status is None:
        status = child.end()
    if signals.asked is not None and status:
        raise Ended(signals.asked, CommandFailed.ended(status).code)
    if timed_out:
        raise AttemptTimeout(timeout or 0.0)
    if status:
        raise CommandFailed.ended(status)


class _Child:
    """One child process. It is reaped once, and gets no signals after that: the number may be another's by then."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], signals: Signals, stdin: int | None
    ) -> None:
        self.signals = signals
        self.apart = not os.isatty(0)
        files = [] if stdin is None else [(os.POSIX_SPAWN_DUP2, stdin, 0)]
        group = {"setpgroup": 0} if self.apart else {}
        try:
            # what Python ignores is not the child's business
            self.pid = os.posix_spawnp(
                command[0],
                list(command),
                dict(environment),
                file_actions=files,
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
                **group,  # type: ignore[arg-type]
            )
        except ValueError:  # an empty name, or one with a NUL in it
            raise CommandFailed.not_started(FileNotFoundError(errno.ENOENT, "no such command")) from None
        except OSError as error:
            raise CommandFailed.not_started(error) from None

    def wait(self, seconds: float | None) -> int | None:
        """The exit code as Python gives it, once the child has ended; None if it has not after so many seconds."""
        until = None if seconds is None else self.signals.now() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                _reap_orphans()
                return os.waitstatus_to_exitcode(status)
            for number in self.signals.unread():
                if not self._has_had(number):
                    self._ask(number)
            left = None if until is None else until - self.signals.now()
            if left is not None and left <= 0:
                return None
            self.signals.pause(left)

    def end(self) -> int:
        """Ask it to end, and make it; nothing of its group is left when this returns."""
        until = self.signals.now() + GRACE
        self._ask(signal.SIGTERM)
        status = self.wait(GRACE)
        while self.apart and status is not None and self._send(0) and self.signals.now() < until:
            self.signals.pause(LOOK)  # the leader has ended, and others of its group clear up
            _reap_orphans()
        if self.apart or status is None:
            self._send(signal.SIGKILL)
        if status is None:
            status = self.wait(None)
            assert status is not None
        return status

    def _has_had(self, number: int) -> bool:
        """Has the terminal sent this to the child as well? It does so to the group in its foreground."""
        return number == signal.SIGINT and not self.apart and os.tcgetpgrp(0) == os.getpgrp()

    def _ask(self, number: int) -> None:
        """Send a signal that asks for an end; a child that is stopped has to go on to see it."""
        self._send(number)
        self._send(signal.SIGCONT)

    def _send(self, number: int) -> bool:
        """Send a signal to the child and its group; the answer is whether anybody was there."""
        try:
            (os.killpg if self.apart else os.kill)(self.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # it runs as somebody else: we can only wait for it
            return True
        return True


def _reap_orphans() -> None:
    """Take note of the end of what children have left behind: the first process of a container inherits it."""
    try:
        while os.getpid() == 1 and os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass  # there is none


def _nothing(number: int, frame: FrameType | None) -> None:
    """For a signal that only has to wake somebody up."""
