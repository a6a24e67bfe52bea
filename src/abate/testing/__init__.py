"""For tests: time that moves by itself, scripted functions, a record of events, and an off switch."""

from abate.testing.off import off
from abate.testing.recorder import Recorder
from abate.testing.script import Script, after
from abate.testing.virtual import VirtualClock

__all__ = ["Recorder", "Script", "VirtualClock", "after", "off"]
