"""Retries around retries: the attempts multiply."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import PurePath

from abate.audit.findings import Spot, rule
from abate.audit.program import Program
from abate.audit.rules.layer_chains import Chain, ChainFinder, Layer, product


@rule(
    "layers",
    "error",
    "retries around retries multiply",
    outage=(
        "One call of a user becomes the product of all layers: a service that is half down gets many times its traffic."
    ),
    abate=(
        "one layer retries: abate recognizes an error that an inner policy has given up "
        "on, and stops with the reason `layer`"
    ),
    fixes={
        "": "retry in one layer, the one that knows whether it is safe and worth it, and switch the others off",
        "openai": "OpenAI(max_retries=0) if the code around it retries",
        "anthropic": "Anthropic(max_retries=0) if the code around it retries",
        "botocore": "Config(retries={'total_max_attempts': 1}) if the code around it retries",
        "redis": "Redis(retry=Retry(NoBackoff(), 0)) if the code around it retries",
        "urllib3": "Retry(0) if the code around it retries",
    },
)
def layers(program: Program) -> Iterator[Spot]:
    """Find chains of retries along the calls of the program."""
    for chain in ChainFinder(program).chains():
        outer = chain[0]
        yield program.spot(outer.node, outer.function, _message(chain), chain[-1].library)


def _message(chain: Chain) -> str:
    counts = " x ".join(_count(layer) for layer in chain)
    total = product(chain)
    if any(layer.attempts is None for layer in chain):
        worst = f"{counts} attempts" if total == 1 else f"{counts} attempts, {_number(total)} or more"
    else:
        worst = f"{counts} = {_number(total)} attempts"
    path = ", around ".join(_named(layer) for layer in chain)
    waiting = _seconds(chain)
    spent = "" if waiting is None else f"; up to {waiting:.4g} s of waiting"
    return f"one call makes up to {worst}: {path}{spent}"


def _count(layer: Layer) -> str:
    return "n" if layer.attempts is None else _number(layer.attempts)


def _number(value: float) -> str:
    return "unlimited" if value == math.inf else f"{value:.0f}"


def _named(layer: Layer) -> str:
    file = PurePath(layer.function.module.source.shown).name
    where = f"{file}:{getattr(layer.node, 'lineno', 1)}"
    inside = "" if layer.function.parent is None else f" in {layer.function.shown}"
    return f"{layer.label}{inside} ({where})"


def _seconds(chain: Chain) -> float | None:
    """Return the waits of all layers in the worst case, if they are known."""
    total = 0.0
    for layer in reversed(chain):
        if layer.seconds is None or layer.attempts is None or not math.isfinite(layer.attempts):
            return None
        total = layer.seconds + layer.attempts * total
    return total or None
