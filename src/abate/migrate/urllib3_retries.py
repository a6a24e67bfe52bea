"""Places where urllib3 retries: a ``Retry`` in an ``HTTPAdapter`` of requests, or in a ``PoolManager``."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst.metadata import Assignment

from abate.migrate.facts import Facts
from abate.migrate.plan import NotMapped, Number, Plan
from abate.migrate.sites import Site, expression, policy
from abate.migrate.source import Source
from abate.migrate.waits import MAX_LISTED, NO_JITTER, NO_WAIT, bound_numbers

PEER = "urllib3"
URLLIB3_RETRY = ("urllib3.Retry", "urllib3.util.Retry", "urllib3.util.retry.Retry")
RETRY = frozenset((*URLLIB3_RETRY, *(f"requests.packages.{name}" for name in URLLIB3_RETRY), "requests.adapters.Retry"))
CLIENTS = {
    "requests.adapters.HTTPAdapter": ("max_retries", "abate.clients.requests", "Adapter"),
    "urllib3.PoolManager": ("retries", "abate.clients.urllib3", "PoolManager"),
    "urllib3.poolmanager.PoolManager": ("retries", "abate.clients.urllib3", "PoolManager"),
}
"""The clients that take a ``Retry``: by which argument, and which of abate's clients replaces them."""
ADAPTER_ARGUMENTS = ("pool_connections", "pool_maxsize", "max_retries", "pool_block")
MANAGER_ARGUMENTS = ("num_pools", "headers")
SETTINGS = (
    "total",
    "connect",
    "read",
    "redirect",
    "status",
    "other",
    "allowed_methods",
    "status_forcelist",
    "backoff_factor",
    "backoff_max",
    "raise_on_redirect",
    "raise_on_status",
)
"""The arguments of ``Retry``, in their order, up to the last that is read here."""
READ = {*SETTINGS, "method_whitelist", "respect_retry_after_header"}
SAFE_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PUT", "TRACE"})
BACKOFF_MAX = 120.0


def find(source: Source, facts: Facts) -> Iterator[Site]:
    """Yield the places of a file where urllib3 retries, with what becomes of each."""
    taken: set[int] = set()
    nodes = [*source.references("requests"), *source.references("urllib3")]
    for node in nodes:
        client = CLIENTS.get(source.imported(node) or "")
        call = source.parents[node]
        if client is not None and isinstance(call, cst.Call) and call.func is node:
            made = _retry_of(source, call, client[0])
            if made is not None:
                taken.add(id(made))
                yield _Reader(source).site_at(call, made, client)
    for node in nodes:
        call = source.parents[node]
        if (
            source.imported(node) in RETRY
            and isinstance(call, cst.Call)
            and call.func is node
            and id(call) not in taken
        ):
            where = "an HTTPAdapter or a PoolManager of this file"
            yield Site(PEER, source.line(node), source.title(call), reason=f"it is not passed to {where}")


def _retry_of(source: Source, client: cst.Call, argument: str) -> cst.Call | None:
    """Return the call that makes the ``Retry`` of a client."""
    for given in client.args:
        if given.keyword is not None and given.keyword.value == argument:
            made = source.value(given.value)
            if isinstance(made, cst.Call) and source.imported(made.func) in RETRY:
                return made
    return None


class _Reader:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.site = Site(PEER, 0, "")
        self.plan: Plan = self.site.plan

    def site_at(self, client: cst.Call, made: cst.Call, names: tuple[str, str, str]) -> Site:
        """Read one client with its ``Retry``."""
        source, (argument, module, name) = self.source, names
        self.site.line, self.site.title = source.line(client), source.title(client)
        try:
            source.check_binding(client.func)
            positional = ADAPTER_ARGUMENTS if name == "Adapter" else MANAGER_ARGUMENTS
            given = source.arguments(client, positional)
            values = {key: one.value for key, one in source.arguments(made, SETTINGS).items()}
            self._settings(values, requests=name == "Adapter")
            self.plan.modules |= {module}
            inside = given[argument].value
            if inside is made:
                first = policy(source, made, "abate.Policy", self.plan, made, source.column(made))
            else:
                first = self._named(inside, made, argument)
            rest = [f"{key}={source.code(one.value)}" for key, one in given.items() if key != argument]
            code = f"{module}.{name}({', '.join([first, *rest])})"
            self.site.edits.append((client, expression(source, code)))
        except NotMapped as error:
            self.site.reason = str(error)
        return self.site

    def _named(self, name: cst.BaseExpression, made: cst.Call, argument: str) -> str:
        """Let a name stand for the policy instead of the ``Retry``, if all its uses are of this kind."""
        source = self.source
        if not isinstance(name, cst.Name):
            raise NotMapped(f"what becomes of {source.code(name)} can't be followed")
        scope = source.scopes[name]
        assert scope is not None
        (assignment,) = scope[name.value]
        assert isinstance(assignment, Assignment)
        for access in assignment.references:
            used = source.parents[access.node]
            if not (isinstance(used, cst.Arg) and used.keyword is not None and used.keyword.value == argument):
                raise NotMapped(f"{name.value} is also used on line {source.line(access.node)}")
        if len(assignment.references) > 1:
            raise NotMapped(f"{name.value} is used {len(assignment.references)} times")
        code = policy(source, made, "abate.Policy", self.plan, made, source.column(made))
        self.site.edits.append((made, expression(source, code)))
        return name.value

    def _settings(self, values: dict[str, cst.BaseExpression], requests: bool) -> None:
        if unknown := set(values) - READ:
            raise NotMapped(f"{', '.join(sorted(unknown))} has no equivalent")
        code = {name: self.source.code(value) for name, value in values.items()}
        if code.get("respect_retry_after_header", "True") != "True":
            raise NotMapped("respect_retry_after_header has no equivalent: abate keeps a Retry-After")
        total = code.get("total", "10")
        if total in ("None", "False", "True"):
            raise NotMapped(f"total={total} has no equivalent: choose a max_attempts")
        for limit in ("connect", "read", "status", "other", *(() if requests else ("redirect",))):
            if limit in code and code[limit] not in ("None", total):
                raise NotMapped(
                    f"{limit}={code[limit]} beside total={total}: abate has one limit for all kinds of failures"
                )
        retries = self.source.number(values["total"]) if "total" in values else Number("10", 10.0)
        known = retries.value
        self.plan.settings["max_attempts"] = f"{retries.code} + 1" if known is None else str(int(known) + 1)
        self._methods(values, code)
        self._condition(values, requests)
        self._backoff(values, None if known is None else int(known))
        if code.get("raise_on_status", "True") != "False":
            self.plan.changed.append(
                "when the attempts have run out the last response is returned, and no error is raised"
            )
        self.plan.changed.append("the last error is raised as it is, without a MaxRetryError around it")

    def _methods(self, values: dict[str, cst.BaseExpression], code: dict[str, str]) -> None:
        name = "method_whitelist" if "method_whitelist" in values else "allowed_methods"
        if name not in values:
            return
        if code[name] in ("None", "False"):
            self.plan.settings["idempotent"] = "True"
            return
        node = self.source.value(values[name])
        if (
            isinstance(node, cst.Call)
            and len(node.args) == 1
            and self.source.code(node.func) in ("frozenset", "set", "tuple")
        ):
            node = node.args[0].value
        if not isinstance(node, (cst.List, cst.Tuple, cst.Set)):
            raise NotMapped(f"{name}={code[name]} can't be read without running the code")
        methods = {self.source.code(one.value).strip("'\"").upper() for one in node.elements}
        if methods - SAFE_METHODS:
            self.plan.settings["idempotent"] = "True"
            self.plan.changed.append(f"requests of all methods are repeated, not of {', '.join(sorted(methods))} only")
        elif also := sorted(SAFE_METHODS - methods - {"TRACE", "OPTIONS", "HEAD"}):
            self.plan.changed.append(f"requests of {', '.join(also)} are repeated too: they are idempotent")

    def _condition(self, values: dict[str, cst.BaseExpression], requests: bool) -> None:
        errors = ["requests.ConnectionError", "requests.Timeout"] if requests else ["urllib3.exceptions.HTTPError"]
        self.plan.modules.add("requests" if requests else "urllib3")
        node = values.get("status_forcelist")
        statuses = None if node is None or self.source.code(node) == "None" else self.source.value(node)
        if statuses is not None and node is not None:
            literal = isinstance(statuses, (cst.List, cst.Tuple, cst.Set)) and isinstance(node, type(statuses))
            if literal and isinstance(statuses, (cst.List, cst.Tuple, cst.Set)):
                numbers = [self.source.number(one.value) for one in statuses.elements]
                if any(number.value is not None and not 400 <= number.value <= 599 for number in numbers):
                    raise NotMapped(
                        f"status_forcelist={self.source.code(node)}: abate retries statuses from 400 to 599"
                    )
                codes = ", ".join(number.code for number in numbers)
            else:
                codes = f"*{self.source.code(node)}"
            errors.append(f"abate.http.status({codes})")
        self.plan.settings["on"] = f"({', '.join(errors)})"
        self.plan.changed.append("a 413, 429 or 503 with a Retry-After is retried only if its status is listed")

    def _backoff(self, values: dict[str, cst.BaseExpression], retries: int | None) -> None:
        plan = self.plan
        factor = self.source.number(values["backoff_factor"]) if "backoff_factor" in values else Number("0", 0.0)
        top = self.source.number(values["backoff_max"]) if "backoff_max" in values else Number.of(BACKOFF_MAX)
        plan.advice.append(NO_WAIT if factor.value == 0 else f"{NO_JITTER}; the first retry follows at once")
        if factor.value == 0:
            plan.settings["backoff"] = "[0.0]"
            return
        bound, (grows, most) = bound_numbers(factor=factor, cap=top)
        plan.settings["backoff"] = f"{bound}: 0.0 if retry == 1 else min({grows} * 2 ** (retry - 1), {most})"
        if factor.value is not None and top.value is not None and retries is not None and retries <= MAX_LISTED:
            waits = [min(factor.value * 2**number, top.value) for number in range(1, retries)]
            plan.settings["backoff"] = f"[{', '.join(['0.0', *(Number.of(wait).code for wait in waits)])}]"
