"""Builds a world from the tables of a scenario. Errors name the file, the table and the key."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from abate.admit.shelter import Shelter
from abate.call.named_rules import is_code
from abate.call.policy import Policy
from abate.call.policy_files import SHELTERS, load_policies, parse_policy, parse_shelters
from abate.errors import choice, number, whole
from abate.redact import escaped
from abate.sim.aws_decorrelated import AWS_DECORRELATED, AwsDecorrelated
from abate.sim.measures import MEASURES, PER_SERVICE, REGRETS
from abate.sim.model import Clients, Controllers, Duration, Limit, Row, Service
from abate.sim.world import ENGINES, Engine, Trigger, World, WorldError

Document = dict[str, Any]

SEEDS = 10
"""The default number of runs of each case."""
MAX_SEEDS = 100_000
RUN_KEYS = ("horizon", "warmup", "tells_layers", "seeds", "engine")
SERVICE_KEYS = {
    kind: ("kind", *(key for key in make.__match_args__ if key != "name"))
    for kind, make in (("service", Service), ("row", Row))
}
"""By the kind of a service. The name of the table is its name."""
TRIGGER_KEYS = tuple(key.rstrip("_") for key in Trigger.__match_args__)
WITHIN = "recovers_within"


def parse_world(place: str, document: Document, users: str | None = None, code: Sequence[str] = ()) -> World:
    """Return the world of a document without variants and sweep; `users` is the user's policy, as FILE:NAME.

    `code` lists the user's modules that may be named.

    >>> parse_world("f.toml", {"clients": {"count": 3}, "services": {"api": {"calls": ["db"]}}})
    Traceback (most recent call last):
    ValueError: f.toml: [services.api]: calls 'db', which is not a service; there are api
    """
    run = table(place, "run", document.get("run", {}))
    check_keys(f"{place}: [run]", run, RUN_KEYS)
    shelters = Shelters(place, document.get(SHELTERS, {}), code)
    services = tuple(_services(place, document.get("services", {}), shelters))
    fields = {
        "clients": _clients(place, document),
        "services": services,
        "policy": _policy(place, document.get("policy"), shelters) if users is None else load_user_policy(users, code),
        "triggers": _triggers(place, document.get("triggers", [])),
        **{key: run[key] for key in ("horizon", "warmup", "tells_layers") if key in run},
    }
    try:
        return World(**fields)
    except WorldError as misfit:
        kind, _, rest = misfit.table.partition(".")
        where = f"[[triggers]] number {int(rest) + 1}" if kind == "triggers" else f"[{misfit.table}]"
        raise ValueError(f"{place}: {where}: {misfit.said}") from misfit
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: [run]: {error}" if services else f"{place}: {error}") from error


def parse_run(place: str, document: Document, world: World, allowed: Sequence[str] = ()) -> tuple[Engine, int]:
    """Return the engine and the number of seeds. The clients' code is imported now, if its module is `allowed`.

    >>> world = parse_world("f.toml", {"clients": {"count": 3}, "services": {"api": {}}})
    >>> parse_run("f.toml", {"run": {"seeds": 5}}, world)
    ('exact', 5)
    """
    run = document.get("run", {})
    code = world.clients.code if isinstance(world.clients, Clients) else ""
    try:
        engine = cast(Engine, choice("engine", run.get("engine", "coroutine" if code else "exact"), tuple(ENGINES)))
        seeds = whole("seeds", run.get("seeds", SEEDS), least=1)
        if seeds > MAX_SEEDS:
            raise ValueError(f"seeds must be at most {MAX_SEEDS:,}, not {seeds:,}")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: [run] {error}") from error
    if code:
        from abate.sim.coroutine_engine import resolve_code

        with locate_code_errors(place):
            world.check_engine(engine)
            if isinstance(code, str) and not is_code(code.partition(":")[0], allowed):
                module = code.partition(":")[0]
                raise ValueError(
                    f"clients.code is {code!r}, which would be imported and run: allow it by --code {module}, or in "
                    f"Python by load_scenario(..., code=[{module!r}])"
                )
            resolve_code(code)
    return engine, seeds


@contextmanager
def locate_code_errors(place: str) -> Generator[None]:
    """Add the file and the table to errors about the clients' code.

    >>> with locate_code_errors("f.toml"):
    ...     raise TypeError("clients.code is 'math:pi', which must be an async function, not 3.14")
    Traceback (most recent call last):
    ValueError: f.toml: [clients]: code is 'math:pi', which must be an async function, not 3.14
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        if not str(error).startswith("clients.code "):
            raise
        raise ValueError(f"{place}: [clients]: {str(error).removeprefix('clients.')}") from error


def parse_assertions(place: str, document: Document, services: tuple[Service | Row, ...]) -> dict[str, float]:
    """Return the assertions of a case, by key.

    >>> parse_assertions("f.toml", {"assert": {"max_blocking": {"db": 0.5}}}, (Service("db"),))
    Traceback (most recent call last):
    ValueError: f.toml: [assert] max_blocking.db needs quotes, as it is one key: "max_blocking.db" = 0.5
    """
    known = {*MEASURES, *REGRETS, *(f"{kind}.{service.name}" for kind in PER_SERVICE for service in services)}
    found = {}
    for key, bound in table(place, "assert", document.get("assert", {})).items():
        kind, _, measure = key.partition("_")
        if measure in PER_SERVICE and isinstance(bound, dict) and bound:
            name, value = next(iter(bound.items()))
            raise ValueError(
                f'{place}: [assert] {key}.{name} needs quotes, as it is one key: "{key}.{name}" = {value!r}'
            )
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


def load_user_policy(place: str, code: Sequence[str] = ()) -> Policy:
    """Load the user's policy, given as FILE:NAME.

    >>> load_user_policy("orders")
    Traceback (most recent call last):
    ValueError: a policy must look like app.toml:orders, not 'orders'
    """
    file, colon, name = place.rpartition(":")
    if not colon or not file or not name:
        raise ValueError(f"a policy must look like app.toml:orders, not {place!r}")
    try:
        policies = load_policies(file, code=code)
    except OSError as error:
        raise ValueError(escaped(f"{file} can't be read: {error}")) from error
    if name not in policies:
        raise ValueError(escaped(f"{file} has no policy {name!r}; it has {', '.join(policies) or 'none'}"))
    return policies[name]


class Shelters:
    """The shelters of a scenario. If any of them has a table, all must have one.

    >>> Shelters("f.toml", {"db": {}}).check("f.toml: [policy]", "bd")
    Traceback (most recent call last):
    ValueError: f.toml: [policy]: shelter must be one of 'db', not 'bd'
    """

    def __init__(self, place: str, tables: object, code: Sequence[str] = ()) -> None:
        self.code = code
        self.made: dict[str, Shelter] = parse_shelters(place, tables)
        self._declared = tuple(self.made)

    def check(self, place: str, name: object) -> None:
        """Refuse a name without a table, if others have one."""
        if self._declared:
            try:
                choice("shelter", name, self._declared)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{place}: {error}") from error


def _clients(place: str, document: Document) -> Clients | Controllers:
    given = [name for name in ("clients", "controllers") if name in document]
    if len(given) != 1:
        raise ValueError(
            f"{place} needs one of [clients] and [controllers], and has {' and '.join(given) or 'neither'}"
        )
    (name,) = given
    make = Clients if name == "clients" else Controllers
    found: Clients | Controllers = value_from_table(f"{place}: [{name}]", make, document[name])
    return found


def _policy(place: str, found: object, shelters: Shelters, name: str = "policy") -> Policy | None:
    if found is None:
        return None
    where = f"{place}: [{name}]"
    settings = {"on": "abate.sim.server:simulated", **table(place, name, found)}
    if "shelter" in settings:
        shelters.check(where, settings["shelter"])
    backoff = settings.get("backoff")
    if not isinstance(backoff, dict) or backoff.get("jitter") != AWS_DECORRELATED:
        return parse_policy(where, name, settings, shelters.made, shelters.code)
    published = {key: value for key, value in backoff.items() if key != "jitter"}
    del settings["backoff"]
    return parse_policy(where, name, settings, shelters.made, shelters.code).replace(
        backoff=value_from_table(f"{where} backoff", AwsDecorrelated, published)
    )


def _services(place: str, tables: object, shelters: Shelters) -> Iterator[Service | Row]:
    for name, found in table(place, "services", tables).items():
        where = f"{place}: [services.{name}]"
        fields = dict(table(place, f"services.{name}", found))
        kind = fields.pop("kind", "service")
        if kind not in ("service", "row"):
            raise ValueError(f"{where} kind must be 'service' or 'row', not {kind!r}")
        check_keys(where, fields, SERVICE_KEYS[kind])
        for key in ("service_time", "network"):
            if isinstance(fields.get(key), dict):
                fields[key] = value_from_table(f"{where} {key}", Duration, fields[key])
        if kind == "service" and "limit" in fields:
            fields["limit"] = value_from_table(f"{where} limit", Limit, fields["limit"])
        if kind == "service" and "policy" in fields:
            fields["policy"] = _policy(place, fields["policy"], shelters, f"services.{name}.policy")
        yield value_from_table(where, Row if kind == "row" else Service, {"name": name, **fields})


def _triggers(place: str, tables: object) -> list[Trigger]:
    if not isinstance(tables, list):
        raise ValueError(f"{place}: triggers must be a list of tables, [[triggers]], not {tables!r}")
    return [_trigger(f"{place}: [[triggers]] number {count}", found) for count, found in enumerate(tables, start=1)]


def _trigger(where: str, found: object) -> Trigger:
    if not isinstance(found, Mapping):
        raise ValueError(f"{where} must be a table, not {found!r}")
    check_keys(where, found, TRIGGER_KEYS)
    for key in ("kind", "at", "for"):
        if key not in found:
            raise ValueError(f"{where} needs a value for {key!r}")
    fields = {f"{key}_" if key == "for" else key: value for key, value in found.items()}
    trigger: Trigger = build(where, Trigger, fields)
    return trigger


def table(place: str, name: str, found: object) -> Mapping[str, Any]:
    """Return the value below a name, which must be a table.

    >>> table("f.toml", "run", 3)
    Traceback (most recent call last):
    ValueError: f.toml: [run] must be a table, not 3
    """
    if not isinstance(found, dict):
        raise ValueError(f"{place}: [{name}] must be a table, not {found!r}")
    return found


def check_keys(place: str, found: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Refuse unknown keys.

    >>> check_keys("f.toml: [run]", {"sede": 1}, ("seeds", "horizon"))
    Traceback (most recent call last):
    ValueError: f.toml: [run] has an unknown key 'sede'; known are seeds, horizon
    """
    for key in found:
        if key not in known:
            raise ValueError(f"{place} has an unknown key {key!r}; known are {', '.join(known)}")


def value_from_table(place: str, make: Callable[..., Any], found: object) -> Any:
    """Build a value from a table of its fields.

    >>> from abate.sim import Limit
    >>> value_from_table("f.toml: [services.api] limit", Limit, 5)
    Traceback (most recent call last):
    ValueError: f.toml: [services.api] limit must be a table, not 5
    """
    if not isinstance(found, dict):
        raise ValueError(f"{place} must be a table, not {found!r}")
    check_keys(place, found, make.__match_args__)  # type: ignore[attr-defined]
    return build(place, make, found)


def build(place: str, make: Callable[..., Any], fields: Mapping[str, Any]) -> Any:
    """Build a value, and add the place to its errors.

    >>> from abate.sim import Clients
    >>> build("f.toml: [clients]", Clients, {"count": 0})
    Traceback (most recent call last):
    ValueError: f.toml: [clients]: count must be a whole number of at least 1, not 0
    """
    try:
        return make(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: {error}") from error
