"""Finds retries around retries: along calls within the program, down to clients that retry by themselves."""

from __future__ import annotations

import ast
import math
from typing import NamedTuple

from abate.audit.call_graph import calls_in
from abate.audit.clients import CLIENTS, ClientDefaults
from abate.audit.control_flow import ways_out
from abate.audit.module_index import Function, inside
from abate.audit.names import Value, argument
from abate.audit.program import Program, ResolvedCall
from abate.audit.retries import EVERYTHING, OF_SERVICES, Covered, Retries

MAX_DEPTH = 60
"""Calls below each other that are followed."""
SESSIONS = ("requests.Session()", "requests.sessions.Session()", "requests.session()")
PROGRAM_ERRORS = frozenset(
    {"ValueError", "KeyError", "TypeError", "AttributeError", "IndexError", "AssertionError", "json.JSONDecodeError",
     "json.decoder.JSONDecodeError", "pydantic.ValidationError", "pydantic_core.ValidationError", "FileNotFoundError"}
)  # fmt: skip


MONGO_RETRIES = frozenset(
    {"find", "find_one", "aggregate", "count_documents", "estimated_document_count", "distinct", "bulk_write",
     "insert_one", "insert_many", "update_one", "replace_one", "delete_one", "find_one_and_update",
     "find_one_and_replace", "find_one_and_delete"}
)  # fmt: skip
"""What PyMongo retries; commands and the making of indexes are not repeated."""


class Layer(NamedTuple):
    """One of the retries around each other."""

    label: str
    library: str
    attempts: float | None
    seconds: float | None
    """The longest sum of its waits, if it is known."""
    node: ast.AST
    function: Function
    by_default: bool
    retries: Retries | None


Chain = tuple[Layer, ...]


def product(chain: Chain) -> float:
    """Return the attempts in the worst case; unknown numbers count as one."""
    return math.prod(1.0 if layer.attempts is None else layer.attempts for layer in chain)


class ChainFinder:
    """Finds the longest chain of retries below each function."""

    def __init__(self, program: Program) -> None:
        self._program, self._names = program, program.names
        self._decorating: dict[int, list[Layer]] = {}
        self._around: dict[int, list[Layer]] = {}
        self._chains: dict[int, Chain] = {}
        self._open: set[int] = set()
        self._mounted = self._adapters()
        self._swallowed: dict[int, set[int]] = {}
        self._retrying = {id(handler) for retries in program.retries for handler in retries.swallows}
        for retries in program.retries:
            if not retries.retries:
                continue
            layer = _layer(retries)
            for covered in retries.covered:
                if covered.nodes is None:
                    self._decorating.setdefault(id(covered.function), []).append(layer)
                else:
                    for call in calls_in(program, covered):
                        self._around.setdefault(id(call.node), []).append(layer)
        for layers in self._decorating.values():
            layers.sort(key=lambda layer: getattr(layer.node, "lineno", 0))
        for layers in self._around.values():
            layers.sort(key=lambda layer: getattr(layer.node, "lineno", 0))

    def chains(self) -> list[Chain]:
        """Return the chains of at least two layers, the outermost first; none is a part of another."""
        found: list[Chain] = []
        for retries in self._program.retries:
            if not retries.retries or retries.polls:
                continue
            best: Chain = ()
            for covered in retries.covered:
                below = self._below(covered, retries)
                if _better(below, best):
                    best = below
            chain = _meeting((_layer(retries), *best))
            if len(chain) > 1:
                found.append(chain)
        inner = {id(layer.node) for chain in found for layer in chain[1:]}
        return [chain for chain in found if id(chain[0].node) not in inner]

    def _below(self, covered: Covered, outer: Retries) -> Chain:
        """Return the longest chain inside code that a retry runs again, without the retry itself."""
        best: Chain = ()
        if covered.nodes is None:
            decorators = self._decorating.get(id(covered.function), [])
            position = next((at for at, layer in enumerate(decorators) if layer.retries is outer), len(decorators))
            body = self._body(covered.function, 0)
            return _meeting((*decorators[position + 1 :], *body))
        for call in calls_in(self._program, covered):
            around = self._around.get(id(call.node), [])
            position = next((at for at, layer in enumerate(around) if layer.retries is outer), -1)
            chain = _meeting((*around[position + 1 :], *self._called(call, 0)))
            if _better(chain, best):
                best = chain
        return best

    def _chain(self, function: Function, depth: int) -> Chain:
        key = id(function)
        if key in self._chains:
            return self._chains[key]
        if key in self._open or depth > MAX_DEPTH:
            return ()
        self._open.add(key)
        found = _meeting((*self._decorating.get(key, ()), *self._body(function, depth + 1)))
        self._open.discard(key)
        self._chains[key] = found
        return found

    def _body(self, function: Function, depth: int) -> Chain:
        best: Chain = ()
        swallowed = self._swallowed_in(function)
        for node in function.calls:
            if id(node) in swallowed:
                continue
            call = self._program.calls[id(node)]
            chain = _meeting((*self._around.get(id(node), ()), *self._called(call, depth)))
            if _better(chain, best):
                best = chain
        return best

    def _swallowed_in(self, function: Function) -> set[int]:
        """Return the ids of the calls in a function whose errors never leave it."""
        known = self._swallowed.get(id(function))
        if known is None:
            known = set()
            for node in inside(function.node):
                if isinstance(node, ast.Try | ast.TryStar) and any(map(self._swallows, node.handlers)):
                    known |= {id(part) for part in inside(node.body) if isinstance(part, ast.Call)}
            self._swallowed[id(function)] = known
        return known

    def _swallows(self, handler: ast.ExceptHandler) -> bool:
        broad = handler.type is None or (isinstance(handler.type, ast.Name) and handler.type.id in EVERYTHING)
        return broad and id(handler) not in self._retrying and "raise" not in ways_out(handler.body)

    def _called(self, call: ResolvedCall, depth: int) -> Chain:
        if call.name is None:
            return ()
        made = self._names.called(call.name)
        if made is not None:
            # a coroutine that is not awaited here runs later, as a task of its own
            later = isinstance(made.node, ast.AsyncFunctionDef) and id(call.node) not in call.function.module.awaited
            return () if later else self._chain(made, depth)
        client = self._client(call)
        return () if client is None else (client,)

    # ── Clients that retry by themselves ─────────────────────────────────────────────────────────────────────

    def _client(self, call: ResolvedCall) -> Layer | None:
        name = call.name or ""
        if name.startswith(SESSIONS) and isinstance(call.node.func, ast.Attribute):
            origin = self._constructor(call.node.func.value, call.function)
            return None if origin is None else self._mounted.get(id(origin.node))
        if name in CLIENTS and CLIENTS[name].library == "litellm":
            return self._client_layer(CLIENTS[name], Value(call.node, call.function))
        at = name.find("()")
        while at >= 0:
            defaults = CLIENTS.get(name[:at])
            if defaults is not None and at + 2 < len(name) and defaults.library != "litellm":
                if defaults.library == "urllib3" and argument(call.node, "retries") is not None:
                    return None
                if defaults.library == "pymongo" and name.rpartition(".")[2] not in MONGO_RETRIES:
                    return None
                base = call.node.func
                while isinstance(base, ast.Attribute) and not self._is_client(base, call.function, name[:at]):
                    base = base.value
                return self._client_layer(defaults, self._constructor(base, call.function))
            at = name.find("()", at + 2)
        return None

    def _is_client(self, node: ast.expr, function: Function, name: str) -> bool:
        return self._names.resolve(node, function) == f"{name}()"

    def _client_layer(self, defaults: ClientDefaults, origin: Value | None) -> Layer | None:
        attempts, by_default = defaults.attempts, True
        if origin is not None and isinstance(origin.node, ast.Call):
            given = argument(origin.node, defaults.retries_parameter) if defaults.retries_parameter else None
            if given is not None and not (isinstance(given, ast.Constant) and given.value is None):
                if isinstance(given, ast.Constant) and given.value is False:
                    return None
                number = self._names.number(given, origin.function)
                attempts, by_default = None if number is None else number + 1, False
            if defaults.library == "botocore":
                config = argument(origin.node, "config")
                if config is not None:
                    attempts = self._configured(config, origin.function, attempts)
                    by_default = attempts == defaults.attempts
        if attempts is not None and attempts <= 1:
            return None
        where = origin if origin is not None else None
        if where is None:
            return None
        return Layer(defaults.label, defaults.library, attempts, None, where.node, where.function, by_default, None)

    def _configured(self, config: ast.expr, function: Function, default: float | None) -> float | None:
        """Return the attempts that a botocore ``Config`` sets."""
        value = self._names.follow(config, function)
        given = argument(value.node, "retries") if isinstance(value.node, ast.Call) else None
        if given is None:
            return default
        settings = self._names.follow(given, value.function)
        if not isinstance(settings.node, ast.Dict):
            return None
        for key, number in zip(settings.node.keys, settings.node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value in ("max_attempts", "total_max_attempts"):
                attempts = self._names.number(number, settings.function)
                return None if attempts is None else attempts + (key.value == "max_attempts")
        return default

    def _constructor(self, node: ast.expr, function: Function, depth: int = 0) -> Value | None:
        """Return the call that makes an object, followed through names and the results of functions."""
        value = self._names.follow(node, function)
        if isinstance(value.node, ast.Await):
            value = self._names.follow(value.node.value, value.function)
        if not isinstance(value.node, ast.Call):
            several = self._names.values(value.node, value.function)
            calls = [one for one in several if isinstance(one.node, ast.Call)]
            if not calls:
                return None
            value = calls[0]
        made = self._names.called(self._names.resolve(value.node.func, value.function))  # type: ignore[attr-defined]
        if made is None or depth > 4:
            return value
        for statement in ast.walk(made.node):
            if isinstance(statement, ast.Return) and statement.value is not None:
                found = self._constructor(statement.value, made, depth + 1)
                if found is not None:
                    return found
        return value

    def _adapters(self) -> dict[int, Layer]:
        """Return the retries that are mounted on each session of requests, by the call that makes the session."""
        found: dict[int, Layer] = {}
        by_node = {id(retries.node): retries for retries in self._program.retries}
        for call in self._program.calls.values():
            if call.name is None or not call.name.endswith("().mount") or not call.name.startswith(SESSIONS):
                continue
            adapter = argument(call.node, "adapter", 1)
            if adapter is None or not isinstance(call.node.func, ast.Attribute):
                continue
            origin = self._constructor(call.node.func.value, call.function)
            made = self._names.follow(adapter, call.function)
            given = argument(made.node, "max_retries") if isinstance(made.node, ast.Call) else None
            if origin is None or given is None:
                continue
            value = self._constructor(given, made.function) or self._names.follow(given, made.function)
            if (retries := by_node.get(id(value.node))) is not None and retries.retries:
                found[id(origin.node)] = _layer(retries)
            elif (number := self._names.number(given, made.function)) is not None and number > 0:
                found[id(origin.node)] = Layer(
                    "requests' HTTPAdapter", "requests", number + 1, 0.0, made.node, made.function, False, None
                )
        return found


def _layer(retries: Retries) -> Layer:
    seconds = None if retries.attempts is None else retries.wait.total(retries.attempts)
    return Layer(
        retries.label,
        retries.library,
        retries.attempts,
        seconds,
        retries.node,
        retries.function,
        retries.by_default,
        retries,
    )


def _better(chain: Chain, than: Chain) -> bool:
    return (product(chain), len(chain)) > (product(than), len(than))


def _meeting(chain: Chain) -> Chain:
    """Return the layers whose errors may reach the layer around them."""
    found: list[Layer] = []
    for layer in chain:
        if any(layer.retries is not None and layer.retries is one.retries for one in found):
            continue
        if found and layer.attempts == math.inf:
            break  # it never gives up, so nothing around it sees an error
        if not found or _meets(found[-1], layer):
            found.append(layer)
    return tuple(found)


def _meets(outer: Layer, inner: Layer) -> bool:
    """Return whether an error that the inner layer gave up on may be retried by the outer one."""
    errors = None if outer.retries is None else outer.retries.errors
    if errors is None or not EVERYTHING.isdisjoint(errors):
        return True
    if all(name in PROGRAM_ERRORS for name in errors):
        return False
    if inner.library == "slack" and all(name.endswith("SlackApiError") for name in errors):
        return False  # an answer of Slack; its client retries connection errors
    below = None if inner.retries is None else inner.retries.errors
    if below is not None and not set(errors).isdisjoint(below):
        return True
    if below is not None and EVERYTHING.isdisjoint(below):
        return False
    return any(name.partition(".")[0] == inner.library or name.endswith(OF_SERVICES) for name in errors)
