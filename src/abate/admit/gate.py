"""What every gate can do, and how gates combine.

An attempt enters before it is sent and leaves when its outcome is known. One that entered and was not sent after
all is refunded instead. Entering never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress


class Gate:
    """Anything that admits attempts; a gate of your own says in `enter` what it refuses.

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

    def enter(self, retry: bool) -> Gate | None:
        """Ask for one attempt: None when it is admitted, else the gate that refused it."""
        raise NotImplementedError

    def leave(self, accepted: bool | None) -> None:
        """An attempt that entered has ended.

        * `accepted` is True when the server took it, whatever it answered (a 404, a 500);
        * False when it did not (a 503, a connection that was refused or broke, a timeout);
        * None when nobody knows: the call was cancelled, a layer further in had given up, or the caller's deadline cut
          the attempt off before it had its time. That is no verdict on the server.
        """

    def refund(self) -> None:
        """An attempt that entered was not sent after all."""

    def undo(self, retry: bool) -> None:
        """Take an `enter` back that was in vain, as a later gate has refused."""
        self.refund()

    def apart(self) -> Gate:
        """The gate for another key (see `Policy.keyed`): a fresh one with the same settings.

        One of your own is the same for all keys, unless it says otherwise here.
        """
        return self

    def refusal(self) -> str:
        """Why this gate refuses, in a few words."""
        return "not admitted"

    def __and__(self, other: Gate) -> Gate:
        """The gate that admits what both admit."""
        if not isinstance(other, Gate):
            return NotImplemented
        return All((*parts(self), *parts(other)))


class All(Gate):
    """Several gates in a row: what an earlier one gave is undone when a later one refuses, or an exception comes.

    >>> import abate
    >>> gate = abate.Permits(2, name="slots") & abate.TokenBucket(rate=1, burst=1, name="rate")
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

    def refund(self) -> None:
        _each(self.gates, lambda gate: gate.refund())

    def apart(self) -> Gate:
        return All(tuple(gate.apart() for gate in self.gates))

    def undo(self, retry: bool) -> None:
        _each(self.gates, lambda gate: gate.undo(retry))


def _each(gates: tuple[Gate, ...], tell: Callable[[Gate], object]) -> None:
    """Tell all gates, the last one first. What is raised meanwhile is raised when all have been told.

    A gate that was told as it was raised is told again: it may be that a signal handler has raised it, before the gate
    could listen.
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
    """The single gates that a gate is made of."""
    if isinstance(gate, All):
        yield from gate.gates
    else:
        yield gate
