"""What is happening: sinks that turn events into logs, one file per sink.

abate.observe.install(abate.observe.LoggingSink())
"""

from abate.events import Sink, install, remove
from abate.observe.logging import LoggingSink

__all__ = ["LoggingSink", "Sink", "install", "remove"]
