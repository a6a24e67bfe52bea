"""The interface of gates, and how gates combine.

An attempt enters before it is sent and leaves when its outcome is known. An attempt that entered and was not sent is
refunded instead. Entering never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress


class Gate:
    """Admits or refuses attempts. Subclass it to write your own gate: `enter` decides.

    >>> import abate
    >>> class Weekdays(abate.Gate):
    ...     name = "weekdays"
    ...     def enter(self, retry): return self
    ...     def refusal(self): return "it is Sunday"
    >>> abate.Policy(on=OSError, gate=Weekdays()).call(print)
    Traceback (most recent call last):
    abate.errors.Refused: weekdays refused: it is Sunday
    """

    __slots__ = ("name",)

    name: str

    held_by_streams = False
    """Whether a stream stays in the gate until it ends: true for a limit on what is in flight. A stream leaves other
    gates when its first item has come."""

    def enter(self, retry: bool) -> Gate | None:
        """Ask for one attempt: return None to admit it, or the gate that refuses it."""
        raise NotImplementedError

    def leave(self, accepted: bool | None) -> None:
        """Record that an attempt that entered has ended.

        * `accepted` is True if the server took it, whatever it answered (a 404, a 500);
        * False if it did not (a 503, a connection that was refused or broke, a timeout);
        * None if it is unknown: the call was cancelled, an inner layer gave up, or the caller's deadline cut the
          attempt off early.
        """

    def failed(self, accepted: bool | None) -> None:
        """Record that an attempt that entered has failed and is worth a retry.

        `accepted` is as for `leave`: True for a failure that the server answered with (a 500).
        """
        self.leave(accepted)

    def refund(self) -> None:
        """Undo an attempt that entered and was not sent."""

    def undo(self, retry: bool) -> None:
        """Undo an `enter`, because a later gate has refused."""
        self.refund()

    def apart(self) -> Gate:
        """Return the gate for another key (see `Policy.keyed`): a new one with the same settings.

        By default all keys share a gate of your own.
        """
        return self

    def refusal(self) -> str:
        """Return why this gate refuses, in a few words."""
        return "not admitted"

    def __and__(self, other: Gate) -> Gate:
        """Return a gate that admits what both admit."""
        if not isinstance(other, Gate):
            return NotImplemented
        return All((*parts(self), *parts(other)))


class All(Gate):
    """Several gates in a row. If one refuses or raises, those that were entered before it are undone.

    >>> import abate
    >>> gate = abate.ConcurrencyLimit(2, name="slots") & abate.TokenBucket(rate=1, burst=1, name="rate")
    >>> gate.enter(retry=False) is None, gate.enter(retry=False).name
    (True, 'rate')
    >>> gate.gates[0].held
    1
    """

    __slots__ = ("gates",)

    def __init__(self, gates: tuple[Gate, ...]) -> None:
        self.gates = gates
        self.name = " & ".join(gate.name for gate in gates)

    def enter(self, retry: bool) -> Gate | None:
        entered = 0
        try:
            for gate in self.gates:
                refused = gate.enter(retry)
                if refused is not None:
                    break
                entered += 1
            else:
                return None
        except BaseException:
            _each(self.gates[:entered], lambda gate: gate.undo(retry))
            raise
        _each(self.gates[:entered], lambda gate: gate.undo(retry))
        return refused

    def leave(self, accepted: bool | None) -> None:
        _each(self.gates, lambda gate: gate.leave(accepted))

    def failed(self, accepted: bool | None) -> None:
        _each(self.gates, lambda gate: gate.failed(accepted))

    def refund(self) -> None:
        _each(self.gates, lambda gate: gate.refund())

    def apart(self) -> Gate:
        return All(tuple(gate.apart() for gate in self.gates))

    def undo(self, retry: bool) -> None:
        _each(self.gates, lambda gate: gate.undo(retry))


def _each(gates: tuple[Gate, ...], tell: Callable[[Gate], object]) -> None:
    """Call `tell` with each gate, the last one first; raise the first error after the last call.

    A call that raised is repeated once: a signal handler may have raised before the gate did anything.
    """
    if gates:
        try:
            tell(gates[-1])
        except BaseException:
            with suppress(Exception):
                tell(gates[-1])
            raise
        finally:
            _each(gates[:-1], tell)


def parts(gate: Gate) -> Iterator[Gate]:
    """Yield the single gates that a gate consists of."""
    if isinstance(gate, All):
        yield from gate.gates
    else:
        yield gate
