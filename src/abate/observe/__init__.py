"""Observe what happens: sinks that turn events into metrics, traces and logs, one file per sink; and the live page.

abate.observe.install(abate.observe.LoggingSink())
"""

import importlib
from typing import TYPE_CHECKING, Any

from abate.events import Sink
from abate.observe.default_logging import disable_logging, enable_logging
from abate.observe.detached import Detached
from abate.observe.installing import install, remove
from abate.observe.logging import LoggingSink
from abate.observe.snapshot import Snapshot, snapshot

if TYPE_CHECKING:
    from abate.observe import page
    from abate.observe.otel import OpenTelemetrySink
    from abate.observe.prometheus import PrometheusSink
    from abate.observe.structlog import StructlogSink

__all__ = [
    "Detached",
    "LoggingSink",
    "OpenTelemetrySink",
    "PrometheusSink",
    "Sink",
    "Snapshot",
    "StructlogSink",
    "disable_logging",
    "enable_logging",
    "install",
    "page",
    "remove",
    "snapshot",
]

_ELSEWHERE = {"OpenTelemetrySink": "otel", "PrometheusSink": "prometheus", "StructlogSink": "structlog"}


if not TYPE_CHECKING:  # a type checker that sees `__getattr__` takes every name for Any

    def __getattr__(name: str) -> Any:
        """Import a sink or the page, and the library that it needs, on first use."""
        if name in _ELSEWHERE:
            return getattr(importlib.import_module(f"abate.observe.{_ELSEWHERE[name]}"), name)
        if name == "page":
            return importlib.import_module("abate.observe.page")
        raise AttributeError(f"module 'abate.observe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
