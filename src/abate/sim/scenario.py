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

Everything that is wrong is an error that names the file, the table and the key, and the variant or the value of the
sweep that it comes from.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from abate.call import toml
from abate.call.load import SHELTERS
from abate.call.names import checked_code
from abate.sim.parts import WITHIN as WITHIN
from abate.sim.parts import asserted_of, engine_and_seeds, world_of
from abate.sim.tables import Document, has, only, overlaid, put, table, value_of
from abate.sim.world import Engine, World
from abate.values import Value

SHIPPED = Path(__file__).parent / "scenarios"
TABLES = ("about", "run", "clients", "controllers", "policy", SHELTERS, "services", "triggers")
OVERLAYS = ("variants", "sweep", "assert")
IN_VARIANTS = (*TABLES, "assert")
MOST_CASES = 10_000
"""Worlds that variants and a sweep make together."""
TABLE = re.compile(r"(\[+)([^\]]+)(\].*)", re.DOTALL)
"""A table at the beginning of an error."""


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
    code: tuple[str, ...] = ()
    """Modules of the user's own that the document and those policies may name."""

    @property
    def about(self) -> str:
        """What to see in it."""
        return str(self.document.get("about", "")).strip()

    def changed(self, setting: str) -> Scenario:
        """The same scenario with one setting changed, as in ``policy.attempts=6``. It counts for every variant.

        A number in it counts triggers, from 0 on: ``triggers.0.for=20``.
        """
        path, equals, text = setting.partition("=")
        path = path.strip()
        keys = path.split(".")
        if not equals or not all(keys):
            raise ValueError(f"--set must look like policy.attempts=6, not {setting!r}")
        document = copy.deepcopy(self.document)
        with toml.legible():
            for found in _targets(document, keys):
                put(f"{self.place}: --set", found, path, value_of(text.strip()))
        document.get("sweep", {}).pop(path, None)
        return self.replaced(document=document)

    def replaced(self, **fields: Any) -> Scenario:
        """The same scenario with other fields.

        >>> load_scenario("herd").replaced(name="mine").name
        'mine'
        """
        known: dict[str, Any] = {name: getattr(self, name) for name in self.__match_args__}
        return Scenario(**(known | fields))

    def cases(self) -> list[Case]:
        """Every variant with every combination of the sweep."""
        with toml.legible():
            return list(self._cases())

    def _cases(self) -> Iterator[Case]:
        base = {key: value for key, value in self.document.items() if key not in ("variants", "sweep")}
        sweep = _swept(self.place, self.document.get("sweep", {}))
        variants = list(self._variants())
        many = len(variants) * math.prod(map(len, sweep.values()))
        if many > MOST_CASES:
            raise ValueError(f"{self.place}: variants and [sweep] make {many:,} cases; expected at most {MOST_CASES:,}")
        for variant in variants:
            for values in product(*sweep.values()):
                yield _case(self.place, base, variant, dict(zip(sweep, values, strict=True)), self.code)

    def _variants(self) -> Iterator[Variant]:
        overlays = table(self.place, "variants", self.document.get("variants", {}))
        for name, overlay in overlays.items():
            only(f"{self.place}: [variants.{name}]", table(self.place, f"variants.{name}", overlay), IN_VARIANTS)
            yield Variant(name, overlay)
        for place in self.policies:
            yield Variant(place.rpartition(":")[2], {}, place)
        if not overlays and not self.policies:
            yield Variant("", {})


class Variant(Value):
    """What is laid over a scenario: tables, or a policy of the user's own, as FILE:NAME.

    >>> Variant("naive", {"policy": {"attempts": 9}}).users is None
    True
    """

    name: str
    overlay: Mapping[str, Any]
    users: str | None = None


def load_scenario(source: str | Path, *, code: Sequence[str] = ()) -> Scenario:
    """The scenario in a file, or the one that ships under this name.

    `code` lists modules of the user's own that the file may name: in ``clients.code``, which is imported and run, and
    in policies (see `abate.load_policies`).

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
    document = toml.read(file)
    place = file.name if file.parent == SHIPPED else str(file)
    with toml.legible():
        only(place, document, (*TABLES, *OVERLAYS))
    scenario = Scenario(file.stem, place, document, code=checked_code(code))
    scenario.cases()  # what is wrong in it is wrong now
    return scenario


def shipped_names() -> list[str]:
    """The scenarios that ship.

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
        raise ValueError(_blamed(str(error), place, base, variant, settings, code)) from error
    called = {found.world.entry, *(name for service in found.world.services for name in service.calls)}
    for name in variant.overlay.get("services", {}):
        if name not in called and name not in base.get("services", {}):
            raise ValueError(
                f"{place}: [variants.{variant.name}.services.{name}]: nobody calls {name!r}; called are"
                f" {', '.join(sorted(called))}"
            )
    return found


def _built(place: str, document: Document, variant: Variant, settings: Mapping[str, Any], code: Sequence[str]) -> Case:
    only(place, document, IN_VARIANTS)
    if not isinstance(document.get("about", ""), str):
        raise ValueError(f"{place}: about must be a text, not {document['about']!r}")
    world = world_of(place, document, variant.users, code)
    engine, seeds = engine_and_seeds(place, document, world, code)
    return Case(variant.name, settings, world, engine, seeds, asserted_of(place, document, world.services))


def _steps(place: str, base: Document, variant: Variant, settings: Mapping[str, Any]) -> Iterator[tuple[str, Document]]:
    """A case as it comes about: the base, then with its variant, then with each value of the sweep; each with what is
    laid over the one before."""
    document = overlaid(base, {})
    yield "", document
    if variant.overlay:
        document = overlaid(base, variant.overlay)
        yield f"[variants.{variant.name}]", document
    for path, value in settings.items():
        document = overlaid(document, {})
        put(f"{place}: [sweep]", document, path, value)
        yield f'[sweep] "{path}" = {value!r}', document


def _blamed(
    said: str, place: str, base: Document, variant: Variant, settings: Mapping[str, Any], code: Sequence[str]
) -> str:
    """The error of a case, with what it comes from: the first step that has it."""
    if not said.startswith(place):  # it is about the user's own policy, which has a file of its own
        return said
    for step, document in _steps(place, base, variant, settings):
        try:
            _built(place, document, variant, settings, code)
        except ValueError as error:
            if str(error) == said:
                return _placed(said, place, step, variant)
    return said


def _placed(said: str, place: str, step: str, variant: Variant) -> str:
    if not step:
        return said
    rest = said.removeprefix(place).lstrip(": ")
    if step.startswith("[variants.") and (named := TABLE.match(rest)) and has(variant.overlay, named[2].split(".")):
        return f"{place}: {named[1]}variants.{variant.name}.{named[2]}{named[3]}"
    return f"{place}: {step}: {rest}"


# -- variants and sweeps


def _targets(document: Document, keys: list[str]) -> list[Document]:
    """Where a setting has to be put: into the base, and into each variant that would hide it.

    Services and triggers are changed where they are; where they are nowhere, the base refuses them.
    """
    variants = list(document.get("variants", {}).values())
    if keys[0] not in ("services", "triggers") or len(keys) < 2:
        return [document, *(overlay for overlay in variants if has(overlay, keys))]
    return [found for found in (document, *variants) if has(found, keys[:2])] or [document]


def _swept(place: str, found: object) -> Mapping[str, list[Any]]:
    sweep = table(place, "sweep", found)
    for path, values in sweep.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"{place}: [sweep] {path!r} must be a list of values, not {values!r}")
        if not all(path.split(".")):
            raise ValueError(f'{place}: [sweep] has the key {path!r}; expected a path such as "clients.count"')
    return sweep
