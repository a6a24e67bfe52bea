"""A worker that may be killed at any instant: what it does with each message goes to a log, line by line.

    python worker.py URL LOG LEASE PAUSE

A line is written with one call, at the end of the file (O_APPEND), so that the lines of several workers don't mix:

    begin KEY TOKEN BEFORE AFTER     handed out by a `receive` that was called and returned at these instants
    done  KEY TOKEN                  its `done` was accepted
    lost  KEY TOKEN                  it was refused
"""

import os
import random
import sys
import time

from abate.stores import open_store
from abate.work.source import Done


def main(url, path, lease, pause):
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(*words):
        os.write(log, (" ".join(map(str, words)) + "\n").encode())

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
