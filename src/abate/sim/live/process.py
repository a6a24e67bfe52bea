"""The process that hosts the services of a live run, as its clients see it."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
from threading import Timer
from types import TracebackType
from typing import Any, Self

from abate.admit.bucket import TokenBucket
from abate.admit.budget import Budget
from abate.admit.gate import All
from abate.admit.permits import Permits
from abate.admit.shelter import Shelter
from abate.admit.throttle import Throttle
from abate.call.policy import Policy
from abate.errors import AbateError
from abate.sim.clients import Clients
from abate.sim.measures import Load
from abate.sim.world import World

PATIENCE = 20.0
"""Seconds that the process has to answer, and to end."""
SHOWN = 2000
"""Characters of what it complained about that an error shows."""


class HostProcess:
    """Starts the services of a world in a process of their own, and ends it with the ``with`` block.

    >>> import abate.sim as sim
    >>> with HostProcess(sim.World(sim.Clients(count=1), [sim.Service("api")]), seed=1) as host:
    ...     list(host.ports)
    ['api']
    """

    def __init__(self, world: World, seed: int) -> None:
        parcel = _packed(world, seed)
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "abate.sim.live.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            start_new_session=True,  # Ctrl-C is the clients' to hear
        )
        try:
            self._tell(parcel)
            self.ports: dict[str, int] = self._heard()
        except BaseException:
            self.close()
            raise

    def begin(self, epoch: float) -> None:
        """The world begins at this instant of the machine's clock, which all processes share."""
        self._tell(f"begin {epoch!r}\n".encode())
        self._heard()

    def check(self) -> None:
        """Raise an error if the process has ended."""
        if self._process.poll() is not None:
            raise self._died()

    def end(self) -> tuple[dict[str, Load], float]:
        """What each service saw, and by how many seconds their timers were late at most."""
        self._tell(b"end\n")
        heard = self._heard()
        return {name: Load(**seen) for name, seen in heard["loads"].items()}, heard["late"]

    def _tell(self, word: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(word)
            self._process.stdin.flush()
        except OSError:
            raise self._died() from None

    def _heard(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        alarm = Timer(PATIENCE, self._process.kill)  # one that says nothing ends as one that has died
        alarm.start()
        try:
            line = self._process.stdout.readline()
        finally:
            alarm.cancel()
        if not line:
            raise self._died()
        found: dict[str, Any] = json.loads(line)
        return found

    def _died(self) -> AbateError:
        try:
            code: object = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = "none"
        self._complaints.seek(0)
        said = self._complaints.read().decode("utf-8", "replace").strip()[-SHOWN:]
        return AbateError(f"the services' process has ended, with code {code}{': ' if said else ''}{said}")

    def close(self) -> None:
        """End the process."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.close()  # which it takes as a word to go
        except OSError:
            pass  # it has gone already, and what was to be told with it
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            process.stdout.close()
            self._complaints.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# -- how a world travels


class _Pickler(pickle.Pickler):
    """Sends budgets, gates and shelters by their settings: what they hold stays here, as do clock and chance."""

    def reducer_override(self, value: Any) -> Any:
        match value:
            case Policy():
                return _policy, ({**value._settings(), "clock": None, "rng": None},)
            case Budget():
                return Budget, (*value.settings(), None, value.name)
            case Shelter():
                return _shelter, (value.capacity, value.patience, value.name)
            case All():
                return All, (value.gates,)
            case TokenBucket():
                return TokenBucket, (value.rate, value.burst, None, value.name)
            case Permits():
                return Permits, (value.limit, value.name)
            case Throttle():
                return Throttle, (value.k, value.window, None, None, value.name)
        return NotImplemented


def _policy(settings: dict[str, Any]) -> Policy:
    return Policy(**settings)


def _shelter(capacity: int, patience: float, name: str) -> Shelter:
    return Shelter(capacity, patience, name=name)


def _packed(world: World, seed: int) -> bytes:
    """What the process needs to know: the services and what goes wrong with them, not who calls."""
    services = World(
        clients=Clients(count=1, calls=world.entry),
        services=world.services,
        triggers=world.triggers,
        horizon=world.horizon,
        tells_layers=world.tells_layers,
    )
    parcel = io.BytesIO()
    try:
        _Pickler(parcel, pickle.HIGHEST_PROTOCOL).dump((services, seed))
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise AbateError(f"a service's policy can't be sent to another process: {error}") from error
    return parcel.getvalue()
