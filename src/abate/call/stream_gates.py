"""The gates that a stream stays in until it ends: they are left also if its generator is never closed."""

from __future__ import annotations

from typing import Any, ClassVar
from weakref import ref

from abate.admit.gate import All, Gate


class HeldGates(ref[Any]):
    """The gates that a stream is in until it ends.

    A weak reference to the stream leaves them if its generator is destroyed without being closed, as after the end of
    its event loop. A ``__del__`` would also run for each stream that has ended normally, and what a signal handler
    raises in a finalizer (a soft time limit, Ctrl-C) is lost.
    """

    __slots__ = ("gates",)

    all_held: ClassVar[set[HeldGates]] = set()
    """Keeps the weak references alive: the collector does not call those that it collects itself."""

    gates: tuple[Gate, ...]

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        self.gates = ()

    def leave(self) -> None:
        """Leave the gates."""
        try:
            while self.gates:
                self.gates[-1].leave(True)
                self.gates = self.gates[:-1]  # no call in between: each gate is left exactly once
        except BaseException:
            gates, self.gates = self.gates, ()
            All(gates).leave(True)  # the others too, and again the one that was interrupted
            raise
        finally:
            self.all_held.discard(self)
