"""How many lines `abate audit` reads per second, on one core: its own source, or the folders given."""

import statistics
import sys
import time
from pathlib import Path

from abate.audit.auditing import audit
from abate.audit.settings import Settings

ROUNDS = 5
BAR = 20_000

paths = [Path(word) for word in sys.argv[1:]] or [Path(__file__).parent.parent / "src"]
rates = []
for _ in range(ROUNDS):
    began = time.process_time()
    found = audit(paths, Settings())
    rates.append(found.lines / (time.process_time() - began))
print(f"{found.files} files, {found.lines:,} lines, {found.retries} retries, {len(found.findings)} findings")
print(f"{statistics.median(rates):,.0f} lines per second (median of {ROUNDS}); the bar is {BAR:,}")
