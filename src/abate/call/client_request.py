"""What a client's call sends: events name its target and its status, and `before_retry` may change it.

A client makes a `ClientRequest` for each call that leaves its fast path, and passes ``make=request.make`` to the
driver. Calls that are not a client's pay nothing; a client's pay for one small object. The texts are made at the first
event.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from abate.call.before_retry import response_of
from abate.call.machine import Call
from abate.decide.outcome import Outcome
from abate.redact import one_line, redacted

if TYPE_CHECKING:
    from abate.call.policy import Policy

MAX_METHOD, MAX_URL = 20, 300
"""The most characters of a method and of a URL in an event."""
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}:/{1,9}|/{2,9}")
"""What precedes the user info or the host, in invalid URLs as well: they are reported, too."""

HOST = re.compile(r"(?:\[[^\]@]*\]|[^:@\[\]]*)(?::\d*)?")
"""A host, with a port or without."""


class ClientRequest:
    """The request of a client's call, as its library has it.

    * `request` is what `before_retry` sees as ``retry.request``: it may change the headers of the next attempt.
    * ``target_of(request)`` returns the method and the URL. User info, query, fragment and known secrets are removed
      here.
    * ``status_of(response)`` returns the status of a response: of a failed result, or of an error that has one in its
      attribute ``response``.

    >>> import abate
    >>> from abate.call import sync_driver
    >>> class Reply:
    ...     status = 503
    >>> policy = abate.Policy(on=abate.on_result(lambda reply: True), max_attempts=1, name="orders")
    >>> request = ClientRequest({}, lambda _: ("GET", "https://me:secret@api.example/orders?token=1"), lambda _: 503)
    >>> recorder = abate.testing.Recorder()
    >>> with recorder:
    ...     reply = sync_driver.drive(policy, None, 0, Reply, (), {}, make=request.make)
    >>> recorder[-1].target, recorder[-1].status
    ('GET https://api.example/orders', 503)
    """

    __slots__ = ("_status_of", "_target", "_target_of", "request")

    def __init__(
        self,
        request: Any,
        target_of: Callable[[Any], tuple[str, str]],
        status_of: Callable[[Any], int | None],
    ) -> None:
        self.request = request
        self._target_of = target_of
        self._status_of = status_of
        self._target: str | None = None

    def make(self, policy: Policy, deadline: float | None, since: int | None, outer_deadline: bool) -> ClientCall:
        """Make the machine of the call."""
        call = ClientCall(policy, deadline, since, outer_deadline)
        call.request = self
        return call

    def target(self) -> str | None:
        """Return method and URL, as events name them; None if the library fails to tell."""
        if self._target is None:
            try:
                method, url = self._target_of(self.request)
                self._target = f"{one_line(str(method), MAX_METHOD)} {_without_secrets(str(url))}"
            except Exception:  # observing never breaks a call
                return None
        return self._target

    def status(self, outcome: Outcome | Exception) -> int | None:
        """Return the status of the response that an attempt ended with; None without one."""
        response = response_of(outcome)
        if response is None:
            return None
        try:
            return self._status_of(response)
        except Exception:  # observing never breaks a call
            return None


class ClientCall(Call):
    """A call that knows its request."""

    __slots__ = ("request",)

    request: ClientRequest | None


def _without_secrets(url: str) -> str:
    """Return a URL without user info, query, fragment and known secrets, on one line.

    >>> _without_secrets("https://me:secret@api.example/orders?token=1#there")
    'https://api.example/orders'
    >>> _without_secrets("//me:secret@api.example/orders"), _without_secrets("https:/me:secret@api.example/orders")
    ('//api.example/orders', 'https:/api.example/orders')
    >>> _without_secrets("//me:sec/ret@api.example/orders"), _without_secrets("https://packages.example:8080/@shop/cart")
    ('//api.example/orders', 'https://packages.example:8080/@shop/cart')
    """
    text = redacted(url)
    scheme = SCHEME.match(text)
    begin = "" if scheme is None else scheme[0]
    rest = text[len(begin) :]
    path = rest.partition("?")[0].partition("#")[0]
    host, slash, path = path.partition("/")
    if "@" in path and HOST.fullmatch(host.rpartition("@")[2]) is None:  # the slash is in a password
        host, slash, path = path.rpartition("@")[2].partition("/")
    return one_line(f"{begin}{host.rpartition('@')[2]}{slash}{path}", MAX_URL)
