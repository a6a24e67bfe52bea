"""What a whole program has: retries without a budget, and retries that clients make by default."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from abate.audit.clients import CLIENTS
from abate.audit.findings import Spot, rule
from abate.audit.names import argument
from abate.audit.program import Program
from abate.audit.rules.layer_chains import ChainFinder


@rule(
    "no-budget",
    "note",
    "no budget bounds the retries of all calls together",
    outage=(
        "Each call is modest and all together multiply the load: with 3 attempts an "
        "outage gets three times the traffic."
    ),
    abate="each policy has Budget(ratio=0.2, reserve=10): retries stay below 20 % of what succeeds",
    fixes={
        "": "count successes and retries per dependency, and stop retrying above a ratio",
        "botocore": "retries={'mode': 'standard'} has a retry quota",
        "abate": "leave budget at its default",
    },
)
def no_budget(program: Program) -> Iterator[Spot]:
    """Report once per program that its retries have no budget."""
    without = [retries for retries in program.retries if retries.retries and not retries.budget]
    if not without:
        return
    first = without[0]
    kinds = Counter(retries.library for retries in without)
    listed = ", ".join(
        f"{count} with {library}" if library != "loop" else f"{count} in plain loops"
        for library, count in kinds.most_common()
    )
    noun = "retry has" if len(without) == 1 else "retries have"
    yield program.spot(first.node, first.function, f"{len(without)} {noun} no budget: {listed}", first.library)


@rule(
    "default-retries",
    "note",
    "a client retries by default",
    outage="These attempts are made below every retry of the program's own, and multiply with it.",
    abate="give the client no retries of its own, and wrap it: abate.clients.openai, .anthropic, .botocore, .redis",
    fixes={
        "": "set the retries where the client is made, to 0 if the code around it retries",
        "openai": "OpenAI(max_retries=0)",
        "anthropic": "Anthropic(max_retries=0)",
        "botocore": (
            "Config(retries={'total_max_attempts': 1}); AWS_MAX_ATTEMPTS and AWS_RETRY_MODE change it from outside"
        ),
        "redis": "Redis(retry=Retry(NoBackoff(), 0))",
        "elasticsearch": "Elasticsearch(max_retries=0)",
        "litellm": "completion(num_retries=0, max_retries=0)",
        "urllib3": "PoolManager(retries=False)",
    },
)
def default_retries(program: Program) -> Iterator[Spot]:
    """Report once per program and library what its clients retry by default, and how many layers that is part of."""
    first: dict[str, tuple[Spot, str]] = {}
    for call in program.calls.values():
        defaults = CLIENTS.get(call.name or "")
        if defaults is None or not defaults.retried or defaults.library in first:
            continue
        if defaults.retries_parameter and argument(call.node, defaults.retries_parameter) is not None:
            continue
        environment = f"; {defaults.environment} set it from outside" if defaults.environment else ""
        attempts = "" if defaults.attempts is None else f"up to {defaults.attempts:g} attempts"
        text = f"{defaults.label} makes {attempts} by default, after {defaults.retried}{environment}"
        first[defaults.library] = program.spot(call.node, call.function, text, defaults.library), text
    if not first:
        return
    layered = Counter(
        layer.library for chain in ChainFinder(program).chains() for layer in chain[1:] if layer.by_default
    )
    for library, (spot, text) in first.items():
        count = layered[library]
        effect = f"; {count} of the layers found include it" if count else ""
        yield Spot(spot.path, spot.line, spot.column, spot.last_line, text + effect, library)
