"""What the candidates go through. The server can do 333 requests per second: 10 workers, 30 ms each."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from clients import LIKE_ANOTHER, OURS, PARTS, PEERS, Settings

ALWAYS = (-1.0, 999.0)
FEW = ("no retry", "naive", "nopanic, budget", *OURS)


@dataclass(frozen=True)
class Server:
    workers: int = 10
    service: float = 0.03
    places: int = 50
    outages: tuple[tuple[float, float, str, float], ...] = ()
    slow: tuple[tuple[float, float, float], ...] = ()
    retry_after: int = 0

    @property
    def capacity(self) -> float:
        return self.workers / self.service

    def settings(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Scenario:
    title: str
    kind: str
    """What is measured: the name of a function of measure.py."""
    server: Server
    herd: int = 0
    """This number of requests at once, at 0 s; else `rate` per second for `seconds`, at random instants."""
    rate: float = 0.0
    seconds: float = 0.0
    policies: int = 4
    """The number of independent processes, which take turns."""
    layers: int = 1
    timeout: float = 1.0
    """Of one attempt."""
    settings: Settings = field(default_factory=Settings)
    window: tuple[float, float] = (0.0, 0.0)
    """The time of trouble."""
    other: Server | None = None
    """A second dependency, to which every other request goes."""
    places: int = 0
    """The most requests that the process handles at once, if that is bounded."""
    clients: tuple[str, ...] = FEW


def outage(how: str, start: float = 4.0, end: float = 9.0, after: float = 1.5) -> Server:
    """An outage of everything, and then two seconds at two thirds of the capacity, as caches are cold."""
    return Server(outages=((start, end, how, 1.0),), slow=((end, end + 2.0, after),))


def crowded(factor: float = 2.0) -> Server:
    """A queue that is longer than the clients' timeout, as queues are, and three slow seconds."""
    return Server(places=400, slow=((4.0, 7.0, factor),))


ALL = (*PEERS, *OURS, *PARTS)
HERD = Server(outages=((-1.0, 3.0, "503", 1.0),), slow=((3.0, 4.0, 2.0),))
FLAPS = tuple((float(second), second + 1.0, "503", 1.0) for second in range(3, 13, 2))
STEADY: dict[str, Any] = {"kind": "steady", "rate": 200.0, "seconds": 18.0, "window": (4.0, 9.0)}
CROWDED: dict[str, Any] = {"kind": "crowd", "seconds": 18.0, "timeout": 0.5, "window": (4.0, 7.0)}
ROUGH: dict[str, Any] = {"kind": "rough", "rate": 200.0, "seconds": 15.0, "window": (3.0, 13.0)}
TWO: dict[str, Any] = {"kind": "two", "rate": 240.0, "seconds": 13.0, "window": (3.0, 8.0), "policies": 1}

SCENARIOS = {
    "A": Scenario(
        "500 clients that don't know each other, 3 s of 503, then 1 s at half capacity",
        "herd",
        HERD,
        herd=500,
        policies=500,
        settings=Settings(max_attempts=10),
        window=(0.0, 3.0),
        clients=ALL,
    ),
    "A2": Scenario(
        "The same herd, on one policy",
        "herd",
        HERD,
        herd=500,
        policies=1,
        settings=Settings(max_attempts=10),
        window=(0.0, 3.0),
        clients=(*PEERS, *OURS),
    ),
    "B": Scenario(
        "200/s (60 %) through 5 s of 503, then 2 s at two thirds of the capacity",
        server=outage("503"),
        clients=ALL,
        **STEADY,
    ),
    "C": Scenario(
        "85 % load, a queue of 400, a timeout of 0.5 s: service takes twice as long for 3 s",
        server=crowded(),
        rate=0.85 / 0.003,
        clients=ALL,
        **CROWDED,
    ),
    "D": Scenario(
        "Three layers of three attempts each, the bottom always 503; 20 calls, one after another",
        "layers",
        Server(outages=((*ALWAYS, "503", 1.0),)),
        herd=20,
        policies=1,
        layers=3,
        settings=Settings(max_attempts=3, base=0.001, cap=0.002, jitter=0.001),
        clients=tuple(name for name in ALL if name != "aiohttp-retry"),
    ),
    "E": Scenario(
        "300 clients that don't know each other, told Retry-After: 2 for 2 s",
        "hinted",
        Server(outages=((-1.0, 2.0, "503", 1.0),), retry_after=2),
        herd=300,
        policies=300,
        window=(0.0, 2.0),
        clients=ALL,
    ),
    "flapping": Scenario("1 s down, 1 s up, for 10 s; 200/s", server=Server(outages=FLAPS), **ROUGH),
    "errors": Scenario(
        "30 % of the answers are 503 for 10 s; 200/s", server=Server(outages=((3.0, 13.0, "503", 0.3),)), **ROUGH
    ),
    "halved": Scenario(
        "The capacity halves for good, to 167/s; 200/s come, with a timeout of 0.5 s and a queue of 400",
        "less",
        Server(places=400, slow=((4.0, 999.0, 2.0),)),
        rate=200.0,
        seconds=18.0,
        timeout=0.5,
        window=(4.0, 18.0),
    ),
    "hang": Scenario("B, but for 5 s nothing is answered", server=outage("hang"), **STEADY),
    "reset": Scenario("B, but for 5 s connections are cut off", server=outage("reset"), **STEADY),
    "two": Scenario(
        "One process, two dependencies, 120/s each; one is down for 5 s",
        server=outage("503", 3.0, 8.0),
        other=Server(),
        **TWO,
    ),
    "places": Scenario(
        "The same, but the process handles 64 requests at once",
        server=outage("503", 3.0, 8.0),
        other=Server(),
        places=64,
        clients=("no retry", "naive", "nopanic, budget", *OURS, "abate, small shelter"),
        **TWO,
    ),
    "quiet": Scenario(
        "2/s on one policy, 5 s of 503", "quiet", outage("503"), rate=2.0, seconds=16.0, policies=1, window=(4.0, 9.0)
    ),
    "load87": Scenario("C at 87 % load", server=crowded(), rate=0.87 / 0.003, **CROWDED),
}


def candidates(key: str, short: bool) -> list[str]:
    """Return the clients of a scenario; in a short run without those that behave like another one."""
    named = SCENARIOS[key].clients
    if not short:
        return list(named)
    return [name for name in named if name not in LIKE_ANOTHER and (named is not FEW or name in ("naive", *OURS))]
