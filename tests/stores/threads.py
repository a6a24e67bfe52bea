"""Threads of tests: each calls a function once, and none may hang."""

import threading

GUARD = 30.0
"""Seconds after which something is taken to hang."""


class Thread(threading.Thread):
    """A thread that calls a function once: what it returned, or raised."""

    def __init__(self, function, *args):
        super().__init__(daemon=True)
        self._function, self._args = function, args
        self._result = self._error = None
        self.start()

    def run(self):
        try:
            self._result = self._function(*self._args)
        except Exception as error:
            self._error = error

    def answer(self):
        self.join(GUARD)
        assert not self.is_alive(), "a thread hangs"
        if self._error is not None:
            raise self._error
        return self._result
