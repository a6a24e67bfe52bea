"""Runs a command as a child process: signals, timeout, exit code.

* The child has its own process group, which gets all signals. If stdin is a terminal the child stays in our group, as
  otherwise it could not read from the terminal, and Ctrl-Z would not reach it.
* SIGTERM, SIGINT and SIGHUP are forwarded, and we wait for the end of the child. Ctrl-C on a terminal reaches a child
  of our group directly, and is not sent twice: many programs take a second one as an order to abort.
* After the timeout the child and its group get SIGTERM, and SIGKILL after `GRACE` seconds.
* Exit codes are those of a shell: the command's own, 126 if it can't be run, 127 if it is not found, 128 + n if signal
  n has killed it.

Signal handlers only record the signal. It is handled in one place, by the wait loop, so that nothing is interrupted
half-way.
"""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Mapping, Sequence
from math import ceil
from types import FrameType, TracebackType
from typing import Any

from abate import clock
from abate.errors import AbateError, AttemptTimeout

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
LOOK = 0.05
"""Seconds between two checks of a group whose leader has ended."""
MAX_POLL = 86_400.0
"""Seconds that one `poll` waits at most: it takes milliseconds in 32 bits. Callers ask again."""

NOT_RUNNABLE, NOT_FOUND, KILLED = 126, 127, 128
SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE)
"""Temporary reasons why a child can't be started."""


class CommandFailed(AbateError):
    """The command ended with an exit code other than 0, or could not be started (`shortage`: of memory or processes).

    >>> print(CommandFailed.ended(75), "-", CommandFailed.ended(-9))
    exit code 75 - killed by SIGKILL
    """

    def __init__(self, text: str, code: int, shortage: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.shortage = shortage

    @classmethod
    def ended(cls, status: int) -> CommandFailed:
        """Build it from Python's exit code, which is negative if a signal has killed the child."""
        if status >= 0:
            return cls(f"exit code {status}", status)
        try:
            name = signal.Signals(-status).name
        except ValueError:  # real-time signals have no name
            name = f"signal {-status}"
        return cls(f"killed by {name}", KILLED - status)

    @classmethod
    def not_started(cls, error: OSError) -> CommandFailed:
        """Build it from the error of a command that can't be run."""
        if error.errno == errno.ENOENT:
            return cls("no such command", NOT_FOUND)
        return cls(f"can't be run: {error.strerror}", NOT_RUNNABLE, error.errno in SHORTAGES)


class StoppedBySignal(BaseException):
    """A signal has asked us to end, with the exit code `code`; nothing is retried after it.

    >>> print(StoppedBySignal(signal.SIGTERM, 143))
    ended by SIGTERM
    """

    def __init__(self, number: int, code: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.code = code


class SignalClock(clock.MachineClock):
    """Records the signals that ask us to end; `asked` is the first. They interrupt its `sleep`.

    A signal that was ignored at the start (by nohup) stays ignored.
    """

    __slots__ = ("_before", "_read", "_unread", "_wakeup", "_write", "asked")

    ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self) -> None:
        self.asked: int | None = None
        self._unread: list[int] = []

    def __enter__(self) -> SignalClock:
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
        """Return the signals since the last call."""
        new, self._unread = self._unread, []
        return new

    def check(self) -> None:
        """Raise `StoppedBySignal` if a signal has asked us to end."""
        if self.asked is not None:
            raise StoppedBySignal(self.asked, KILLED + self.asked)

    def sleep(self, seconds: float) -> None:
        """Wait; a signal that asks us to end raises `StoppedBySignal`."""
        until = self.now() + seconds
        self.check()
        while (left := until - self.now()) > 0:
            self.pause(left)
            self.check()

    def pause(self, seconds: float | None, *files: int) -> bool:
        """Wait, at most a day, for a signal (such as SIGCHLD) or a readable file; return whether a file is readable."""
        poller = select.poll()  # select() takes no descriptor beyond 1023
        for file in (self._read, *files):
            poller.register(file, select.POLLIN)
        milliseconds = None if seconds is None else ceil(min(seconds, MAX_POLL) * 1000)
        readable = [file for file, _ in poller.poll(milliseconds)]
        if self._read in readable:
            os.read(self._read, 4096)
        return any(file in readable for file in files)


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    signals: SignalClock,
    *,
    stdin: int | None = None,
    timeout: float | None = None,
) -> None:
    """Run the command to its end, and raise an error unless its exit code is 0.

    `CommandFailed` has the exit code; `AttemptTimeout` is raised after the timeout, and `StoppedBySignal` if a
    forwarded signal has ended the command.
    """
    signals.check()
    child = _Child(command, environment, signals, stdin)
    status = child.wait(timeout)
    timed_out = status is None
    if status is None:
        status = child.end()
    if signals.asked is not None and status:
        raise StoppedBySignal(signals.asked, CommandFailed.ended(status).code)
    if timed_out:
        raise AttemptTimeout(timeout or 0.0)
    if status:
        raise CommandFailed.ended(status)


class _Child:
    """A child process. After it is reaped it gets no signals: its pid may have been reused."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], signals: SignalClock, stdin: int | None
    ) -> None:
        self.signals = signals
        self.own_group = not os.isatty(0)
        files = [] if stdin is None else [(os.POSIX_SPAWN_DUP2, stdin, 0)]
        group = {"setpgroup": 0} if self.own_group else {}
        try:
            # reset the signals that Python ignores
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
        """Return Python's exit code once the child has ended; None if it has not after `seconds`."""
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
        """Terminate it, then kill it; no process of its group is left afterwards."""
        until = self.signals.now() + GRACE
        self._ask(signal.SIGTERM)
        status = self.wait(GRACE)
        while self.own_group and status is not None and self._send(0) and self.signals.now() < until:
            self.signals.pause(LOOK)  # the leader has ended, others clean up
            _reap_orphans()
        if self.own_group or status is None:
            self._send(signal.SIGKILL)
        if status is None:
            status = self.wait(None)
            assert status is not None
        return status

    def _has_had(self, number: int) -> bool:
        """Return whether the terminal has sent this signal to the child: it does so to its foreground group."""
        return number == signal.SIGINT and not self.own_group and os.tcgetpgrp(0) == os.getpgrp()

    def _ask(self, number: int) -> None:
        """Send a signal that asks for an end, and SIGCONT: a stopped child must continue to handle it."""
        self._send(number)
        self._send(signal.SIGCONT)

    def _send(self, number: int) -> bool:
        """Send a signal to the child and its group; return whether a process was there."""
        try:
            (os.killpg if self.own_group else os.kill)(self.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:  # it runs as another user: we can only wait
            return True
        return True


def _reap_orphans() -> None:
    """Reap orphans, if this is the first process of a container, which inherits them."""
    try:
        while os.getpid() == 1 and os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass  # there are none


def _nothing(number: int, frame: FrameType | None) -> None:
    """Handle a signal that only has to interrupt a wait."""
