"""SQS as a source of messages, with boto3.

* **receive** is a long poll of up to 20 seconds, never longer than asked, for up to ten messages.
* The **lease** is the visibility timeout. `extend` renews it, up to the twelve hours that SQS allows since a message
  was received; after that it is lost. A verdict after the lease is refused here, because SQS may accept it although
  another worker has the message by now.
* **done** deletes. **back** makes the message visible after the delay, in whole seconds, at most 900; so does a done
  message that is to come again, which SQS can't tell from a failed one. A receive can't be taken back: a message
  returned untouched has been received once more. A process remembers which of its own receives were no attempts (see
  `abate.clients.sqs_receive_counts`), and `Message.receives` excludes them.
* **buried** sends the message to the dead-letter queue with the reason (see `abate.clients.sqs_message_limits`), and
  deletes it once SQS has confirmed that. It may be there twice, and is never lost.
* In a **FIFO** queue a failed message holds its group back until it is visible again. Dead letters keep their group.
  They are deduplicated by message id and not by the senders' ids: of two messages with the same, SQS would drop one.

SQS has no token that grows with every lease but the number of receives, which it calls approximate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from json import loads
from math import ceil
from typing import Any, Literal, TypeAlias
from uuid import uuid4

from abate import clock as clocks
from abate.clients.sqs_api import BATCH, MAX_POLL, Entry, SqsApi, client_for
from abate.clients.sqs_message_limits import (
    MAX_BYTES,
    Attributes,
    check_size,
    check_text,
    dead_letter_attributes,
    decode_attributes,
    encode_attributes,
)
from abate.clients.sqs_receive_counts import ReceiveCounts
from abate.clock import Clock
from abate.errors import number, suggests_settings, whole
from abate.logs import Log
from abate.work.source import Back, Bury, Done, Message, Settlement

__all__ = ["Queue"]

log = Log("abate.work")

MAX_LEASE = 43_200
"""Seconds since a message was received; SQS grants no more."""
MAX_DELAY = 900
"""Seconds; the longest delay of a message."""

DeadLetters: TypeAlias = str | Literal[False] | None


class Receipt:
    """The state of a message that was received.

    `settled` from the moment its verdict is sent to SQS, `sent` once it is in the dead-letter queue.
    """

    __slots__ = ("attributes", "handle", "sent", "settled", "since", "until")

    def __init__(self, handle: str, attributes: Attributes, since: float, until: float) -> None:
        self.handle = handle
        self.attributes = attributes
        self.since = since
        self.until = until
        self.settled = False
        self.sent = False


def decode_message(raw: Mapping[str, Any], fifo: bool, now: float, lease: float, receives: ReceiveCounts) -> Message:
    """Decode a received message from boto3's form.

    >>> raw = {"MessageId": "42", "ReceiptHandle": "r", "Body": "{}"}
    >>> decode_message(raw, fifo=False, now=0.0, lease=30.0, receives=ReceiveCounts())
    Message(key='42', body='{}', receives=1)
    """
    about, attributes = raw.get("Attributes", {}), raw.get("MessageAttributes", {})
    count = _count(about.get("ApproximateReceiveCount", 1))
    return Message(
        raw["MessageId"],
        raw["Body"],
        receives.attempts(raw["MessageId"], count),
        token=count,
        attributes=decode_attributes(attributes),
        group=about.get("MessageGroupId") if fifo else None,  # in a standard queue it does not order messages
        handle=Receipt(raw["ReceiptHandle"], attributes, now, now + lease),
        unanswered=None,
    )


def _count(given: object) -> int:
    """Return how often a message was received according to SQS; 1 if that is unreadable."""
    digits = str(given)
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 10 else 1


class Queue:
    """An SQS queue, as the source of a consumer; it also sends.

    * `url`: of the queue.
    * `client`: of boto3, with its retries off (`abate.clients.botocore.config`); by default a new one.
    * `dead_letters`: the URL of the dead-letter queue; by default that of the redrive policy. False sends nothing:
      buried messages stay until the queue's own ``maxReceiveCount`` moves them.
    * `lease`: seconds that a worker has for a message; by default the queue's visibility timeout.
    * `patience`: seconds of one long poll, up to 20; a consumer that stops waits for it.
    * `max_body`: bytes of a message that `send` takes; fewer if the queue takes fewer.
    * `clock`: for tests.

    >>> import abate
    >>> nowhere = client_for("http://127.0.0.1:1", aws_access_key_id="id", aws_secret_access_key="secret")
    >>> with abate.testing.VirtualClock():
    ...     Queue("http://127.0.0.1:1/123456789012/orders", client=nowhere)
    Traceback (most recent call last):
    botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "http://127.0.0.1:1/"
    """

    durable = True

    @suggests_settings
    def __init__(
        self,
        url: str,
        *,
        client: Any = None,
        dead_letters: DeadLetters = None,
        lease: float | None = None,
        patience: float = 5.0,
        max_body: int = MAX_BYTES,
        clock: Clock | Callable[[], float] | None = None,
    ) -> None:
        self.url = _url("url", url)
        self.name = _name(url)
        self.fifo = self.name.endswith(".fifo")
        self.lease: float | None = None if lease is None else ceil(number("lease", lease, above=0, most=MAX_LEASE))
        self.patience = number("patience", patience, above=0, most=MAX_POLL)
        self._max_bytes = whole("max_body", max_body, least=1)
        self._clock = clocks.as_clock(clock)
        self._own = client is None
        self._receive_counts = ReceiveCounts()
        self._api = SqsApi.of(self.name, client_for(url) if client is None else client, self._clock)
        try:
            self._read_attributes(dead_letters)
        except BaseException:
            self.close()
            raise
        # a result that comes after the lease is useless
        self._api_within_lease = self._api.within(self._lease)

    def close(self) -> None:
        """Close the connections, unless the client was given."""
        if self._own:
            self._api.client.close()

    def send(
        self,
        body: str,
        *,
        attributes: Mapping[str, str] | None = None,
        delay: float = 0,
        group: str | None = None,
        deduplication: str | None = None,
    ) -> str:
        """Send a message, and return its id. Raise an error, and send nothing, if SQS would refuse it.

        After a broken connection a standard queue may have it twice. A FIFO queue needs a `group`, and has it once: by
        the given `deduplication` id, by its content if the queue does that, or by an id made here.
        """
        written = encode_attributes(attributes or {})
        check_size(check_text("body", body), written, self._max_bytes)
        seconds = ceil(number("delay", delay, least=0, most=MAX_DELAY))
        request: dict[str, Any] = {"MessageBody": body, "MessageAttributes": written}
        if not self.fifo:
            if group is not None or deduplication is not None:
                raise ValueError(f"{self.name} is a standard queue: it does not support group and deduplication")
            request["DelaySeconds"] = seconds
            return self._api.send(self.url, **request)
        if group is None:
            raise ValueError(f"{self.name} is a FIFO queue: pass group=")
        if seconds:
            raise ValueError(f"{self.name} is a FIFO queue: it does not support a delay of one message, as {delay!r}")
        request["MessageGroupId"] = group
        if deduplication is not None or not self._deduplicates_by_content:
            request["MessageDeduplicationId"] = deduplication or uuid4().hex
        return self._api.send(self.url, **request)

    # -- the source

    def receive(self, max_messages: int, wait: float) -> Sequence[Message]:
        """Lease up to `max_messages` messages, at most ten; see `abate.work.Source`."""
        batch = min(whole("max_messages", max_messages, least=1), BATCH)
        found = self._poll(batch, min(int(number("wait", wait, least=0)), self._api.max_poll))
        if not found and 0 < wait < 1:  # SQS waits for whole seconds
            (self._clock or clocks.current()).sleep(wait)
            found = self._poll(batch, 0)
        return found

    @property
    def buries(self) -> bool:
        """Return whether buried messages leave the queue; otherwise they come again, and their group must wait."""
        return self._dead_letters is not None

    def extend(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Renew the visibility timeouts, and return the messages whose lease was lost."""
        now = self._now()
        lost: list[Message] = []
        entries: list[Entry] = []
        for message in messages:
            receipt = _receipt(message)
            if receipt.settled:
                continue  # it was just returned, and must not be taken away again
            seconds = min(self._lease, int(receipt.since + MAX_LEASE - now))
            if now >= receipt.until or seconds < 1:
                lost.append(message)
            else:
                entries.append((message, {"ReceiptHandle": receipt.handle, "VisibilityTimeout": seconds}))
        gone = self._api_within_lease.change_visibility(self.url, entries)
        for message, entry in entries:
            if message not in gone:
                _receipt(message).until = now + entry["VisibilityTimeout"]
        return lost + gone

    def settle(self, settlements: Sequence[Settlement]) -> Sequence[Message]:
        """Carry out verdicts, and return the messages whose lease was lost.

        If SQS fails, everything possible is done before the error is raised; the rest comes back by itself.
        """
        now = self._now()
        lost: list[Message] = []
        done: list[Entry] = []
        back: list[Entry] = []
        buried: list[tuple[Message, Bury]] = []
        for message, verdict in settlements:
            receipt = _receipt(message)
            self._receive_counts.settled(message, verdict)  # even if the request fails: it comes back by itself
            if receipt.settled:
                continue  # done before an error, after which all are settled once more
            if now >= receipt.until:
                lost.append(message)
                continue
            match verdict:
                case Bury():
                    buried.append((message, verdict))
                case Done(again=None):
                    done.append((message, {"ReceiptHandle": receipt.handle}))
                case Done(again=after) | Back(after=after):
                    seconds = min(ceil(after or 0), MAX_DELAY, int(receipt.since + MAX_LEASE - now))
                    back.append((message, {"ReceiptHandle": receipt.handle, "VisibilityTimeout": seconds}))
        errors: list[Exception] = []
        with _keeping_errors(done, errors):
            lost += self._api_within_lease.delete(self.url, done)
        with _keeping_errors(back, errors):
            lost += self._api_within_lease.change_visibility(self.url, back)
        for message, bury in buried:
            with _keeping_errors([(message, bury)], errors):
                lost += self._bury(message, bury)
        if errors:
            raise errors[0]
        return lost

    # -- requests

    def _read_attributes(self, dead_letters: DeadLetters) -> None:
        """Read the queue's attributes, and find its dead-letter queue."""
        about = self._api.attributes(self.url)
        self._lease = int(about["VisibilityTimeout"] if self.lease is None else self.lease)
        if not self._lease:
            raise ValueError(f"{self.name} has a visibility timeout of 0: pass lease= (seconds)")
        self.lease = float(self._lease)
        self._max_bytes = min(self._max_bytes, int(about["MaximumMessageSize"]))
        self._deduplicates_by_content = about.get("ContentBasedDeduplication") == "true"
        self._dead_letters = self._dead_letter_url(dead_letters, about.get("RedrivePolicy"))
        self.redrives = "RedrivePolicy" in about
        """Whether SQS's redrive policy buries messages that were received too often. Messages that crash their process
        are left to it: SQS also counts receives that other processes returned untouched."""
        if self._dead_letters is not None:
            self._max_dead_letter_bytes = int(self._api.attributes(self._dead_letters)["MaximumMessageSize"])

    def _dead_letter_url(self, dead_letters: DeadLetters, redrive: str | None) -> str | None:
        """Return the URL of the dead-letter queue."""
        if dead_letters is False:
            return None
        if dead_letters is None:
            if redrive is None:
                raise ValueError(
                    f"{self.name} has no redrive policy: dead_letters must be the URL of the queue for messages that"
                    " can't be worked off, or False to leave them in place"
                )
            dead_letters = self._api.url(loads(redrive)["deadLetterTargetArn"])
        url = _url("dead_letters", dead_letters)
        if _name(url).endswith(".fifo") != self.fifo:
            kind = "FIFO" if self.fifo else "standard"
            raise ValueError(f"the dead letters of the {kind} queue {self.name} need a {kind} queue, not {_name(url)}")
        return url

    def _poll(self, most: int, seconds: int) -> list[Message]:
        request: dict[str, Any] = {
            "MaxNumberOfMessages": most,
            "WaitTimeSeconds": seconds,
            "VisibilityTimeout": self._lease,
        }
        if self.fifo:
            # if the response is lost, the next attempt gets the same messages, and not groups that are held
            request["ReceiveRequestAttemptId"] = uuid4().hex
        found = self._api.receive(self.url, **request)
        return [decode_message(raw, self.fifo, self._now(), self._lease, self._receive_counts) for raw in found]

    def _bury(self, message: Message, bury: Bury) -> list[Message]:
        """Send a message to the dead-letter queue, and delete it when it is there."""
        receipt = _receipt(message)
        if self._dead_letters is None:
            log.warning("%s keeps %s, which is %s: %s", self.name, message.key, bury.kind, bury.reason)
            return []
        if not receipt.sent:
            request: dict[str, Any] = {
                "MessageBody": message.body,
                "MessageAttributes": dead_letter_attributes(
                    message.body, receipt.attributes, bury, self.name, self._max_dead_letter_bytes
                ),
            }
            if self.fifo:
                request |= {"MessageGroupId": message.group, "MessageDeduplicationId": message.key}
            self._api_within_lease.send(self._dead_letters, **request)
            receipt.sent = True
        return self._api_within_lease.delete(self.url, [(message, {"ReceiptHandle": receipt.handle})])

    def _now(self) -> float:
        return (self._clock or clocks.current()).now()


def _url(name: str, url: object) -> str:
    if not isinstance(url, str) or not re.fullmatch(r"https?://[^/]+/.*[^/]", url):
        raise ValueError(f"{name} must be the URL of a queue, not {url!r}")
    return url


def _name(url: str) -> str:
    return url.rpartition("/")[2]


def _receipt(message: Message) -> Receipt:
    if not isinstance(message.handle, Receipt):
        raise TypeError(f"{message!r} was not received from SQS")
    return message.handle


@contextmanager
def _keeping_errors(settlements: Sequence[tuple[Message, object]], errors: list[Exception]) -> Iterator[None]:
    """Yield the messages to settle, and collect errors, so that one error does not stop the others."""
    receipts = [_receipt(message) for message, _ in settlements]
    for receipt in receipts:
        receipt.settled = True
    try:
        yield
    except Exception as error:
        errors.append(error)
        for receipt in receipts:
            receipt.settled = False
