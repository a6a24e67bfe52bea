"""A consumer that may be killed or stopped at any instant; each key that it handles is a line of the log.

python consumer.py URL FOLDER
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import abate
from benchmarks.stress.program import LEASE, Log


def main(url: str, folder: str) -> None:
    """Work until the process is ended."""
    log = Log(Path(folder) / "log")

    @abate.consumer(source=abate.open_store(url).queue("work", lease=LEASE), workers=4, name="work")
    def handle(message: abate.work.Message) -> None:
        log.write("handled", message.key)
        time.sleep(0.001)

    handle.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
