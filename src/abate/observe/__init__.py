"""What is happening: sinks that turn events into metrics, traces and logs, one file per sink; and the live page.

abate.observe.install(abate.observe.LoggingSink())
"""

from abate.observe.installing import Sink, install, remove
from abate.observe.logging import LoggingSink
from abate.observe.snapshot import Snapshot, snapshot

__all__ = ["LoggingSink", "Sink", "Snapshot", "install", "remove", "snapshot"]
