"""Scenarios: worlds in TOML, each with its variants, its sweeps and what is asserted of it.

    about = "What to see in it."

    [run]                          # horizon, warmup, seeds, engine, tells_layers
    horizon = 60.0

    [clients]                      # or [controllers]: the fields of these values
    count = 1000

    [policy]                       # the keys of a policy in production; `on` may be left out, and the jitter of its
                                   # backoff may be "aws-decorrelated", which AWS published and production has not
    attempts = 3

    [services.api]                 # the fields of a Service, its own policy among them, or of a Row (kind = "row")
    workers = 10
    service_time = 0.05            # or { mean = 0.05, shape = "exponential" }

    [[triggers]]
    kind = "error"
    at = 20.0
    for = 10.0

    [variants.naive.policy]        # laid over the rest: the same world once per variant
    backoff = { jitter = "none" }

    [sweep]                        # and once per combination of these values
    "clients.count" = [100, 1000]

    [assert]                       # recovers_within, max_* and min_* of any measure: a build can fail on them
    recovers_within = 20.0
    max_amplification = 1.5

Everything that is wrong is an error that names the file, the table and the key.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, cast

from abate.admit.shelter import Shelter
from abate.call.load import SHELTERS, load_policies, policy_of, shelters_of
from abate.call.policy import Policy
from abate.errors import choice, number, whole
from abate.sim.clients import Clients, Controllers
from abate.sim.durations import Duration
from abate.sim.measures import MEASURES, PER_SERVICE
from abate.sim.published import AWS_DECORRELATED, AwsDecorrelated
from abate.sim.services import Limit, Row, Service
from abate.sim.world import ENGINES, Engine, Trigger, World
from abate.values import Value

SHIPPED = Path(__file__).parent / "scenarios"
SEEDS = 10
"""Runs of each case, unless a scenario says otherwise."""
TABLES = ("about", "run", "clients", "controllers", "policy", SHELTERS, "services", "triggers")
OVERLAYS = ("variants", "sweep", "assert")
RUN_KEYS = ("horizon", "warmup", "tells_layers", "seeds", "engine")
WITHIN = "recovers_within"

Document = dict[str, Any]


class Case(Value):
    """One world of a scenario: which variant, with which values of the sweep, and what is asserted of it."""

    variant: str
    settings: Mapping[str, Any]
    world: World
    engine: Engine
    seeds: int
    asserted: Mapping[str, float]

    @property
    def name(self) -> str:
        """What tells this case from the others."""
        words = [self.variant] if self.variant else []
        words += [f"{key.rpartition('.')[2]}={value}" for key, value in self.settings.items()]
        return " ".join(words)


class Scenario(Value):
    """A scenario as it was read; `cases` builds its worlds.

    >>> herd = load_scenario("herd")
    >>> [case.variant for case in herd.cases()][0]
    'none'
    >>> herd.changed("clients.count=50").cases()[0].world.clients.count
    50
    """

    name: str
    place: str
    """What errors call it: the file, as a rule."""
    document: Document
    policies: tuple[str, ...] = ()
    """Policies of the user's own, each as FILE:NAME: one more variant each."""

    @property
    def about(self) -> str:
        """What to see in it."""
        return str(self.document.get("about", "")).strip()

    def changed(self, setting: str) -> Scenario:
        """The same scenario with one setting changed, as in ``policy.attempts=6``. It counts for every variant."""
        path, equals, text = setting.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise ValueError(f"--set must look like policy.attempts=6, not {setting!r}")
        document = copy.deepcopy(self.document)
        value = _value(text.strip())
        targets = [document, *(table for table in document.get("variants", {}).values() if _has(table, keys))]
        for table in targets:
            _put(self.place, table, keys, value)
        document.get("sweep", {}).pop(path.strip(), None)
        return Scenario(self.name, self.place, document, self.policies)

    def cases(self) -> list[Case]:
        """Every variant with every combination of the sweep."""
        return list(self._cases())

    def _cases(self) -> Iterator[Case]:
        base = {key: value for key, value in self.document.items() if key not in ("variants", "sweep")}
        variants = _table(self.place, "variants", self.document.get("variants", {}))
        sweep = _swept(self.place, self.document.get("sweep", {}))
        own = [(place.rpartition(":")[2], place) for place in self.policies]
        for name, place in [(name, None) for name in variants or ([] if own else [""])] + cast(Any, own):
            overlay = variants.get(name, {}) if place is None else {}
            where = f"{self.place}: [variants.{name}]" if place is None and name else self.place
            _only(where, _table(where, "", overlay), (*TABLES, "assert"))
            for values in product(*sweep.values()):
                document = _overlaid(base, overlay)
                settings = dict(zip(sweep, values, strict=True))
                for path, value in settings.items():
                    _put(self.place, document, path.split("."), value)
                yield _case(self.place, name, settings, document, place)


def load_scenario(source: str | Path) -> Scenario:
    """The scenario in a file, or the one that ships under this name.

    >>> load_scenario("nowhere")
    Traceback (most recent call last):
    ValueError: there is no scenario 'nowhere', neither as a file nor among those that ship: ...
    """
    shipped = SHIPPED / f"{source}.toml"
    file = Path(source)
    if "/" not in str(source) and not file.suffix and shipped.is_file():
        file = shipped
    if not file.is_file():
        names = ", ".join(shipped_names())
        raise ValueError(f"there is no scenario {str(source)!r}, neither as a file nor among those that ship: {names}")
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not TOML: {error}") from error
    place = file.name if file.parent == SHIPPED else str(file)
    _only(place, document, (*TABLES, *OVERLAYS))
    scenario = Scenario(file.stem, place, document)
    scenario.cases()  # what is wrong in it is wrong now
    return scenario


def shipped_names() -> list[str]:
    """The scenarios that ship.

    >>> "herd" in shipped_names()
    True
    """
    return sorted(file.stem for file in SHIPPED.glob("*.toml"))


# -- from tables to values


def _case(place: str, variant: str, settings: Mapping[str, Any], document: Document, policy: str | None) -> Case:
    _only(place, document, (*TABLES, "assert"))
    run = _table(place, "run", document.get("run", {}))
    _only(f"{place}: [run]", run, RUN_KEYS)
    shelters = shelters_of(place, document.get(SHELTERS, {}))
    services = tuple(_services(place, document.get("services", {}), shelters))
    world: World = _made(
        f"{place}: [run]" if services else place,
        World,
        {
            "clients": _clients(place, document),
            "services": services,
            "policy": _policy(place, document.get("policy"), shelters) if policy is None else _users(policy),
            "triggers": _triggers(place, document.get("triggers", [])),
            **{key: run[key] for key in ("horizon", "warmup", "tells_layers") if key in run},
        },
    )
    try:
        engine = cast(Engine, choice("engine", run.get("engine", "exact"), ENGINES))
        seeds = whole("seeds", run.get("seeds", SEEDS), least=1)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: [run] {error}") from error
    asserted = _asserted(place, document.get("assert", {}), services)
    return Case(variant, settings, world, engine, seeds, asserted)


def _clients(place: str, document: Document) -> Clients | Controllers:
    given = [name for name in ("clients", "controllers") if name in document]
    if len(given) != 1:
        raise ValueError(
            f"{place} needs one of [clients] and [controllers], and has {' and '.join(given) or 'neither'}"
        )
    (name,) = given
    made = Clients if name == "clients" else Controllers
    found: Clients | Controllers = _fielded(f"{place}: [{name}]", made, document[name])
    return found


def _policy(place: str, table: object, shelters: dict[str, Shelter], name: str = "policy") -> Policy | None:
    if table is None:
        return None
    settings = {"on": "abate.sim.answers:simulated", **_table(place, name, table)}
    backoff = settings.get("backoff")
    if not isinstance(backoff, dict) or backoff.get("jitter") != AWS_DECORRELATED:
        return policy_of(f"{place}: [{name}]", name, settings, shelters)
    published = {key: value for key, value in backoff.items() if key != "jitter"}
    del settings["backoff"]
    return policy_of(f"{place}: [{name}]", name, settings, shelters).replace(
        backoff=_fielded(f"{place}: [{name}] backoff", AwsDecorrelated, published)
    )


def _users(place: str) -> Policy:
    """A policy out of the user's own file, given as FILE:NAME."""
    file, colon, name = place.rpartition(":")
    if not colon or not file or not name:
        raise ValueError(f"a policy of your own must look like app.toml:orders, not {place!r}")
    try:
        policies = load_policies(file)
    except OSError as error:
        raise ValueError(f"{file} can't be read: {error}") from error
    if name not in policies:
        raise ValueError(f"{file} has no policy {name!r}; it has {', '.join(policies) or 'none'}")
    return policies[name]


def _services(place: str, tables: object, shelters: dict[str, Shelter]) -> Iterator[Service | Row]:
    for name, table in _table(place, "services", tables).items():
        where = f"{place}: [services.{name}]"
        fields = dict(_table(place, f"services.{name}", table))
        kind = fields.pop("kind", "service")
        if kind not in ("service", "row"):
            raise ValueError(f"{where} kind must be 'service' or 'row', not {kind!r}")
        for key in ("service_time", "network"):
            if isinstance(fields.get(key), dict):
                fields[key] = _fielded(f"{where} {key}", Duration, fields[key])
        if isinstance(fields.get("limit"), dict):
            fields["limit"] = _fielded(f"{where} limit", Limit, fields["limit"])
        if kind == "service" and "policy" in fields:
            fields["policy"] = _policy(place, fields["policy"], shelters, f"services.{name}.policy")
        yield _fielded(where, Row if kind == "row" else Service, {"name": name, **fields})


def _triggers(place: str, tables: object) -> list[Trigger]:
    if not isinstance(tables, list):
        raise ValueError(f"{place}: triggers must be a list of tables, [[triggers]], not {tables!r}")
    found = []
    for number_, table in enumerate(tables, start=1):
        where = f"{place}: [[triggers]] number {number_}"
        fields = dict(_table(place, f"[triggers]] number {number_}", table))
        if "for_" in fields:
            raise ValueError(f"{where} has an unknown key 'for_'; it is called 'for'")
        if "for" in fields:
            fields["for_"] = fields.pop("for")
        for key in ("kind", "at", "for_"):
            if key not in fields:
                raise ValueError(f"{where} needs a value for {key.rstrip('_')!r}")
        found.append(_fielded(where, Trigger, fields))
    return found


def _asserted(place: str, table: object, services: tuple[Service | Row, ...]) -> dict[str, float]:
    known = {*MEASURES, *(f"{kind}.{service.name}" for kind in PER_SERVICE for service in services)}
    found = {}
    for key, bound in _table(place, "assert", table).items():
        kind, _, measure = key.partition("_")
        if key != WITHIN and (kind not in ("max", "min") or measure not in known):
            raise ValueError(
                f"{place}: [assert] has an unknown key {key!r}; known are {WITHIN}, and max_ or min_ before one of"
                f" {', '.join(sorted(known))}"
            )
        try:
            found[key] = number(key, bound, least=0)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{place}: [assert] {error}") from error
    return found


def _swept(place: str, table: object) -> dict[str, list[Any]]:
    sweep = _table(place, "sweep", table)
    for path, values in sweep.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"{place}: [sweep] {path!r} must be a list of values, not {values!r}")
        if not all(path.split(".")):
            raise ValueError(f'{place}: [sweep] has the key {path!r}; expected a path such as "clients.count"')
    return dict(sweep)


# -- tables


def _table(place: str, name: str, table: object) -> Mapping[str, Any]:
    if not isinstance(table, dict):
        raise ValueError(f"{place}: [{name}] must be a table, not {table!r}")
    return table


def _only(place: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise ValueError(f"{place} has an unknown key {key!r}; known are {', '.join(known)}")


def _fielded(place: str, make: Callable[..., Any], table: object) -> Any:
    """A value out of a table of its fields."""
    fields = _table(place, "", table) if isinstance(table, dict) else None
    if fields is None:
        raise ValueError(f"{place} must be a table, not {table!r}")
    _only(place, fields, make.__match_args__)  # type: ignore[attr-defined]
    return _made(place, make, fields)


def _made(place: str, make: Callable[..., Any], fields: Mapping[str, Any]) -> Any:
    try:
        return make(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: {error}") from error


def _overlaid(base: Document, overlay: Mapping[str, Any]) -> Document:
    """One document laid over another: tables are merged, everything else is replaced."""
    found = copy.deepcopy(base)
    for key, value in overlay.items():
        mine = found.get(key)
        found[key] = (
            _overlaid(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else copy.deepcopy(value)
        )
    return found


def _put(place: str, table: Document, keys: list[str], value: Any) -> None:
    for depth, key in enumerate(keys[:-1], start=1):
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ValueError(f"{place}: {'.'.join(keys[:depth])} is no table, so {'.'.join(keys)} can't be set")
    table[keys[-1]] = value


def _has(table: object, keys: list[str]) -> bool:
    for key in keys:
        if not isinstance(table, dict) or key not in table:
            return False
        table = table[key]
    return True


def _value(text: str) -> Any:
    """A value as TOML writes it; what is no TOML is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
