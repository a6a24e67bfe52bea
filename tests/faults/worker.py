"""A worker that may be killed at any time: it logs what it does with each message.

    python worker.py URL LOG LEASE PAUSE

Each line is one write with O_APPEND, so that lines of several workers don't mix:

    begin KEY TOKEN BEFORE AFTER     received; `receive` was called at BEFORE and returned at AFTER
    done  KEY TOKEN                  `done` was accepted
    lost  KEY TOKEN                  `done` was refused: the lease was lost
"""

import os
import random
import sys
import time

from abate.stores import open_store
from abate.work.source import Done


def main(url, path, lease, pause):
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(*fields):
        os.write(log, (" ".join(map(str, fields)) + "\n").encode())

    queue = open_store(url).queue("work", lease=float(lease))
    while True:
        before = time.time()
        messages = queue.receive(random.randint(1, 4), wait=1.0)
        after = time.time()
        for message in messages:
            write("begin", message.key, message.token, repr(before), repr(after))
            time.sleep(random.random() * float(pause))
            lost = queue.settle([(message, Done())])
            write("lost" if lost else "done", message.key, message.token)


if __name__ == "__main__":
    main(*sys.argv[1:])
