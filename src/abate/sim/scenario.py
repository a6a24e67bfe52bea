"""Scenarios: worlds in TOML, with variants, sweeps and assertions.

    about = "What it shows."

    [run]                          # horizon, warmup, seeds, engine, tells_layers
    horizon = 60.0

    [clients]                      # or [controllers]: the fields of these values
    count = 1000

    [policy]                       # the keys of a production policy; `on` is optional, and the jitter of the backoff
                                   # may be "aws-decorrelated", as AWS published it
    max_attempts = 3

    [services.api]                 # the fields of a Service, or of a Row (kind = "row")
    workers = 10
    service_time = 0.05            # or { mean = 0.05, shape = "exponential" }

    [[triggers]]
    kind = "error"
    at = 20.0
    for = 10.0

    [variants.naive.policy]        # merged over the rest: one world per variant
    backoff = { jitter = "none" }

    [sweep]                        # one world per combination of these values
    "clients.count" = [100, 1000]

    [assert]                       # recovers_within, max_* and min_* of any measure
    recovers_within = 20.0
    max_amplification = 1.5

Errors name the file, the table and the key, and the variant or the value of the sweep.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from abate.call import bounded_toml
from abate.call.bounded_toml import MAX_DEPTH, TooDeep
from abate.call.named_rules import checked_code
from abate.call.policy_files import SHELTERS
from abate.frozen import Frozen
from abate.sim.scenario_parser import WITHIN as WITHIN
from abate.sim.scenario_parser import Document, check_keys, parse_assertions, parse_run, parse_world, table
from abate.sim.world import Engine, World

SHIPPED = Path(__file__).parent / "scenarios"
TABLES = ("about", "run", "clients", "controllers", "policy", SHELTERS, "services", "triggers")
OVERLAYS = ("variants", "sweep", "assert")
IN_VARIANTS = (*TABLES, "assert")
MAX_CASES = 10_000
"""Of all variants and sweep values together."""
TABLE = re.compile(r"(\[+)([^\]]+)(\].*)", re.DOTALL)
"""A table name at the beginning of an error."""


class Case(Frozen):
    """One world of a scenario: its variant, its values of the sweep, and its assertions."""

    variant: str
    settings: Mapping[str, Any]
    world: World
    engine: Engine
    seeds: int
    asserted: Mapping[str, float]

    @property
    def name(self) -> str:
        """The variant and the values of the sweep."""
        words = [self.variant] if self.variant else []
        words += [f"{key.rpartition('.')[2]}={value}" for key, value in self.settings.items()]
        return " ".join(words)


class Scenario(Frozen):
    """A parsed scenario; `cases` builds its worlds.

    >>> herd = load_scenario("herd")
    >>> [case.variant for case in herd.cases()][0]
    'none'
    >>> herd.changed("clients.count=50").cases()[0].world.clients.count
    50
    """

    name: str
    place: str
    """The file, for error messages."""
    document: Document
    policies: tuple[str, ...] = ()
    """The user's policies, as FILE:NAME: each is one more variant."""
    code: tuple[str, ...] = ()
    """The user's modules that the document and the policies may name."""

    @property
    def about(self) -> str:
        """The description."""
        return str(self.document.get("about", "")).strip()

    def changed(self, setting: str) -> Scenario:
        """Return the scenario with one setting changed in every variant, as in ``policy.max_attempts=6``.

        Triggers are numbered from 0: ``triggers.0.for=20``.
        """
        path, equals, text = setting.partition("=")
        path = path.strip()
        keys = path.split(".")
        if not equals or not all(keys):
            raise ValueError(f"--set must look like policy.max_attempts=6, not {setting!r}")
        document = copy.deepcopy(self.document)
        with bounded_toml.one_line_errors():
            for found in _targets(document, keys):
                set_path(f"{self.place}: --set", found, path, parse_value(text.strip()))
        document.get("sweep", {}).pop(path, None)
        return self.replaced(document=document)

    def replaced(self, **fields: Any) -> Scenario:
        """Return the scenario with some fields replaced.

        >>> load_scenario("herd").replaced(name="mine").name
        'mine'
        """
        known: dict[str, Any] = {name: getattr(self, name) for name in self.__match_args__}
        return Scenario(**(known | fields))

    def cases(self) -> Sequence[Case]:
        """Return every variant with every combination of the sweep. They are built once."""
        found: tuple[Case, ...] | None = self.__dict__.get("_built")
        if found is None:
            with bounded_toml.one_line_errors():
                found = self.__dict__["_built"] = tuple(self._cases())
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: getattr(self, name) for name in self.__match_args__
        }  # without the cases: policies can't be pickled

    def _cases(self) -> Iterator[Case]:
        base = {key: value for key, value in self.document.items() if key not in ("variants", "sweep")}
        sweep = _swept(self.place, self.document.get("sweep", {}))
        variants = list(self._variants())
        many = len(variants) * math.prod(map(len, sweep.values()))
        if many > MAX_CASES:
            raise ValueError(f"{self.place}: variants and [sweep] make {many:,} cases; expected at most {MAX_CASES:,}")
        for variant in variants:
            for values in product(*sweep.values()):
                yield _case(self.place, base, variant, dict(zip(sweep, values, strict=True)), self.code)

    def _variants(self) -> Iterator[Variant]:
        overlays = table(self.place, "variants", self.document.get("variants", {}))
        for name, overlay in overlays.items():
            check_keys(f"{self.place}: [variants.{name}]", table(self.place, f"variants.{name}", overlay), IN_VARIANTS)
            yield Variant(name, overlay)
        for place in self.policies:
            yield Variant(place.rpartition(":")[2], {}, place)
        if not overlays and not self.policies:
            yield Variant("", {})


class Variant(Frozen):
    """An overlay of a scenario: tables, or the user's policy as FILE:NAME.

    >>> Variant("naive", {"policy": {"max_attempts": 9}}).users is None
    True
    """

    name: str
    overlay: Mapping[str, Any]
    users: str | None = None


def load_scenario(source: str | Path, *, code: Sequence[str] = ()) -> Scenario:
    """Load a scenario from a file, or the shipped one of this name.

    `code` lists the user's modules that the file may name: in ``clients.code``, which is imported and run, and in
    policies (see `abate.load_policies`).

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
    document = bounded_toml.read(file)
    place = file.name if file.parent == SHIPPED else str(file)
    with bounded_toml.one_line_errors():
        check_keys(place, document, (*TABLES, *OVERLAYS))
    scenario = Scenario(file.stem, place, document, code=checked_code(code))
    scenario.cases()  # raises the errors of the file now
    return scenario


def shipped_names() -> list[str]:
    """Return the names of the shipped scenarios.

    >>> "herd" in shipped_names()
    True
    """
    return sorted(file.stem for file in SHIPPED.glob("*.toml"))


# -- one case


def _case(place: str, base: Document, variant: Variant, settings: Mapping[str, Any], code: Sequence[str]) -> Case:
    *_, (_, document) = _steps(place, base, variant, settings)
    try:
        found = _built(place, document, variant, settings, code)
    except ValueError as error:
        raise ValueError(_locate_error(str(error), place, base, variant, settings, code)) from error
    called = {found.world.entry, *(name for service in found.world.services for name in service.calls)}
    for name in variant.overlay.get("services", {}):
        if name not in called and name not in base.get("services", {}):
            raise ValueError(
                f"{place}: [variants.{variant.name}.services.{name}]: {name!r} is never called; called are"
                f" {', '.join(sorted(called))}"
            )
    return found


def _built(place: str, document: Document, variant: Variant, settings: Mapping[str, Any], code: Sequence[str]) -> Case:
    check_keys(place, document, IN_VARIANTS)
    if not isinstance(document.get("about", ""), str):
        raise ValueError(f"{place}: about must be a text, not {document['about']!r}")
    world = parse_world(place, document, variant.users, code)
    engine, seeds = parse_run(place, document, world, code)
    return Case(variant.name, settings, world, engine, seeds, parse_assertions(place, document, world.services))


def _steps(place: str, base: Document, variant: Variant, settings: Mapping[str, Any]) -> Iterator[tuple[str, Document]]:
    """Yield the documents of a case as it is built: the base, with the variant, with each value of the sweep."""
    document = merge(base, {})
    yield "", document
    if variant.overlay:
        document = merge(base, variant.overlay)
        yield f"[variants.{variant.name}]", document
    for path, value in settings.items():
        document = merge(document, {})
        set_path(f"{place}: [sweep]", document, path, value)
        yield f'[sweep] "{path}" = {value!r}', document


def _locate_error(
    said: str, place: str, base: Document, variant: Variant, settings: Mapping[str, Any], code: Sequence[str]
) -> str:
    """Return the error with its origin: the first step of the case that raises it."""
    if not said.startswith(place):  # it is about the user's policy, in a file of its own
        return said
    for step, document in _steps(place, base, variant, settings):
        try:
            _built(place, document, variant, settings, code)
        except ValueError as error:
            if str(error) == said:
                return _with_location(said, place, step, variant)
    return said


def _with_location(said: str, place: str, step: str, variant: Variant) -> str:
    if not step:
        return said
    rest = said.removeprefix(place).lstrip(": ")
    if (
        step.startswith("[variants.")
        and (named := TABLE.match(rest))
        and has_path(variant.overlay, named[2].split("."))
    ):
        return f"{place}: {named[1]}variants.{variant.name}.{named[2]}{named[3]}"
    return f"{place}: {step}: {rest}"


# -- variants and sweeps


def _targets(document: Document, keys: list[str]) -> list[Document]:
    """Return the tables in which to change a setting: the base, and each variant that overrides it.

    Services and triggers are changed where they are defined; if they are not, the base raises the error.
    """
    variants = list(document.get("variants", {}).values())
    if keys[0] not in ("services", "triggers") or len(keys) < 2:
        return [document, *(overlay for overlay in variants if has_path(overlay, keys))]
    return [found for found in (document, *variants) if has_path(found, keys[:2])] or [document]


def _swept(place: str, found: object) -> Mapping[str, list[Any]]:
    sweep = table(place, "sweep", found)
    for path, values in sweep.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"{place}: [sweep] {path!r} must be a list of values, not {values!r}")
        if not all(path.split(".")):
            raise ValueError(f'{place}: [sweep] has the key {path!r}; expected a path such as "clients.count"')
    return sweep


def merge(base: Document, overlay: Mapping[str, Any]) -> Document:
    """Return the base with the overlay: tables are merged, other values are replaced.

    >>> merge({"run": {"seeds": 3, "horizon": 9.0}}, {"run": {"seeds": 5}})
    {'run': {'seeds': 5, 'horizon': 9.0}}
    """
    found = copy.deepcopy(base)
    for key, value in overlay.items():
        mine = found.get(key)
        found[key] = merge(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else copy.deepcopy(value)
    return found


def set_path(place: str, document: Document, path: str, value: Any) -> None:
    """Set the value at a path. List entries are numbered from 0; services are never created.

    >>> document = {"triggers": [{"for": 5.0}], "services": {"db": {}}}
    >>> set_path("f.toml", document, "triggers.0.for", 20.0); document["triggers"]
    [{'for': 20.0}]
    >>> set_path("f.toml", document, "services.dbb.workers", 3)
    Traceback (most recent call last):
    ValueError: f.toml: services.dbb.workers must name one of the services db, not 'dbb'
    """
    keys = path.split(".")
    if len(keys) > MAX_DEPTH:
        raise ValueError(f"{place}: {path[:80]!r} … must lead through at most {MAX_DEPTH} tables, not {len(keys)}")
    at: Any = document
    for depth, key in enumerate(keys):
        found: Any = at
        above = ".".join(keys[:depth])
        entry: str | int = key
        if isinstance(found, list):
            if not key.isdecimal() or int(key) >= len(found):
                raise ValueError(
                    f"{place}: {path} must name one of the {len(found)} entries of {above}, from 0 on, not {key!r}"
                )
            entry = int(key)
        elif not isinstance(found, dict):
            raise ValueError(f"{place}: {above} is not a table, so that {path} can't be set")
        elif above == "services" and key not in found:
            raise ValueError(
                f"{place}: {path} must name one of the services {', '.join(found) or '(none)'}, not {key!r}"
            )
        elif depth < len(keys) - 1:
            found.setdefault(key, [] if path.startswith("triggers.") and not depth else {})
        if depth == len(keys) - 1:
            at[entry] = value
        else:
            at = at[entry]


def has_path(document: object, keys: list[str]) -> bool:
    """Return whether a path exists.

    >>> has_path({"triggers": [{"for": 5.0}]}, ["triggers", "0", "for"]), has_path({"run": {}}, ["run", "seeds"])
    (True, False)
    """
    for key in keys:
        if isinstance(document, list) and key.isdecimal() and int(key) < len(document):
            document = document[int(key)]
        elif isinstance(document, dict) and key in document:
            document = document[key]
        else:
            return False
    return True


def parse_value(text: str) -> Any:
    """Parse a value as TOML; other text is a string.

    >>> parse_value("[1, 2]"), parse_value("lifo")
    ([1, 2], 'lifo')
    """
    try:
        return bounded_toml.parse(f"value = {text}")["value"]
    except TooDeep as error:
        raise ValueError(f"a value {error}") from None
    except ValueError:
        return text
