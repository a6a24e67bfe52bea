"""SQS as a source of messages, by boto3.

The rules:

* **receive** is a long poll of up to 20 seconds, never longer than asked, for up to ten messages;
* the **lease** is the visibility timeout. `extend` lets it begin anew, up to the twelve hours that SQS allows since a
  message was received; past them it is lost. A verdict that comes after the lease is refused here, as SQS may take it
  although somebody else has the message by now;
* **done** deletes. **back** makes the message visible after the delay, in whole seconds, at most 900; so does a done
  message that is to come again, which SQS can't tell from one that failed. A receive can't be taken back either:
  what comes back untouched has been received once more. A process remembers which of its own receives were not attempts
  (see `abate.clients.sqs_receives`), and `Message.receives` is without them;
* **buried** sends the message to the dead-letter queue with the reason (see `abate.clients.sqs_letter`), and deletes
  it when SQS has said that it is there. It may be there twice, never nowhere;
* of a **FIFO** queue a message that failed holds its group back for as long as it is not visible. Its dead letters
  keep their group. They are told apart by the ids of the messages, not by what their senders deduplicated them by:
  of two with the same, SQS would drop one.

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
from abate.clients.sqs_api import BATCH, LONGEST_POLL, Api, Entry, client_for
from abate.clients.sqs_letter import LARGEST, Attributes, dead, fits, plain, text, typed
from abate.clients.sqs_receives import Receives
from abate.clock import Clock
from abate.errors import number, whole
from abate.logs import Log
from abate.work.source import Back, Bury, Done, Message, Settlement

log = Log("abate.work")

LONGEST_LEASE = 43_200
"""Seconds since a message was received; SQS grants no more."""
LONGEST_DELAY = 900
"""Seconds; how long a message stays away at most."""

DeadLetters: TypeAlias = str | Literal[False] | None


class Receipt:
    """What a queue knows about a message that it has handed out.

    `settled` from the moment at which its verdict is on its way to SQS, `sent` once it is among the dead letters.
    """

    __slots__ = ("attributes", "handle", "sent", "settled", "since", "until")

    def __init__(self, handle: str, attributes: Attributes, since: float, until: float) -> None:
        self.handle = handle
        self.attributes = attributes
        self.since = since
        self.until = until
        self.settled = False
        self.sent = False


def received(raw: Mapping[str, Any], fifo: bool, now: float, lease: float, receives: Receives) -> Message:
    """A message that was just received, from the words of boto3.

    >>> raw = {"MessageId": "42", "ReceiptHandle": "r", "Body": "{}"}
    >>> received(raw, fifo=False, now=0.0, lease=30.0, receives=Receives())
    Message(key='42', body='{}', receives=1)
    """
    about, attributes = raw.get("Attributes", {}), raw.get("MessageAttributes", {})
    count = _count(about.get("ApproximateReceiveCount", 1))
    return Message(
        raw["MessageId"],
        raw["Body"],
        receives.attempts(raw["MessageId"], count),
        token=count,
        attributes=plain(attributes),
        group=about.get("MessageGroupId") if fifo else None,  # in a standard queue it says nothing on order
        handle=Receipt(raw["ReceiptHandle"], attributes, now, now + lease),
        unanswered=None,
    )


def _count(given: object) -> int:
    """How often a message was received, as SQS says; one that it can't say is the first."""
    text = str(given)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 1


class Queue:
    """A queue of SQS, as the source of a consumer; it can be sent to as well.

    * `url`: of the queue.
    * `client`: of boto3, with its retries off (`abate.clients.botocore.config`); its own unless given.
    * `dead_letters`: the URL of the queue for what is buried; the one of the redrive policy unless given. False sends
      nothing: what is buried stays until the queue's own ``maxReceiveCount`` moves it.
    * `lease`: seconds for which a message is the worker's; the queue's own visibility timeout unless given.
    * `patience`: seconds for one long poll of a consumer, up to 20; a consumer that is to stop waits for it.
    * `largest`: bytes of a message that `send` takes; fewer where the queue takes fewer.
    * `clock`: its own time.

    >>> import abate
    >>> nowhere = client_for("http://127.0.0.1:1", aws_access_key_id="id", aws_secret_access_key="secret")
    >>> with abate.testing.VirtualClock():
    ...     Queue("http://127.0.0.1:1/123456789012/orders", client=nowhere)
    Traceback (most recent call last):
    botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "http://127.0.0.1:1/"
    """

    durable = True

    def __init__(
        self,
        url: str,
        *,
        client: Any = None,
        dead_letters: DeadLetters = None,
        lease: float | None = None,
        patience: float = 5.0,
        largest: int = LARGEST,
        clock: Clock | Callable[[], float] | None = None,
    ) -> None:
        self.url = _url("url", url)
        self.name = _name(url)
        self.fifo = self.name.endswith(".fifo")
        self.lease: float | None = None if lease is None else ceil(number("lease", lease, above=0, most=LONGEST_LEASE))
        self.patience = number("patience", patience, above=0, most=LONGEST_POLL)
        self._largest = whole("largest", largest, least=1)
        self._clock = clocks.given(clock)
        self._own = client is None
        self._receives = Receives()
        self._api = Api.of(self.name, client_for(url) if client is None else client, self._clock)
        try:
            self._look(dead_letters)
        except BaseException:
            self.close()
            raise
        # after the lease nobody wants to know any more
        self._prompt = self._api.within(self._lease)

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
        """Send a message: its id. What SQS would refuse is refused before.

        After a connection that broke a standard queue may have it twice. A FIFO queue needs a `group`, and has it
        once: by the `deduplication` id given, by its content where the queue does so, or by an id made here.
        """
        written = typed(attributes or {})
        fits(text("body", body), written, self._largest)
        seconds = ceil(number("delay", delay, least=0, most=LONGEST_DELAY))
        request: dict[str, Any] = {"MessageBody": body, "MessageAttributes": written}
        if not self.fifo:
            if group is not None or deduplication is not None:
                raise ValueError(f"{self.name} is a standard queue: group and deduplication say nothing to it")
            request["DelaySeconds"] = seconds
            return self._api.send(self.url, **request)
        if group is None:
            raise ValueError(f"{self.name} is a FIFO queue: a message to it needs a group")
        if seconds:
            raise ValueError(f"{self.name} is a FIFO queue: a message to it can't have a delay, as {delay!r}")
        request["MessageGroupId"] = group
        if deduplication is not None or not self._by_content:
            request["MessageDeduplicationId"] = deduplication or uuid4().hex
        return self._api.send(self.url, **request)

    # -- the source

    def receive(self, most: int, wait: float) -> Sequence[Message]:
        """Up to `most` messages, and up to ten; see `abate.work.source.Source`."""
        most = min(whole("most", most, least=1), BATCH)
        found = self._poll(most, min(int(number("wait", wait, least=0)), self._api.longest_poll))
        if not found and 0 < wait < 1:  # SQS waits for whole seconds
            (self._clock or clocks.current()).sleep(wait)
            found = self._poll(most, 0)
        return found

    @property
    def buries(self) -> bool:
        """Is what is buried away from the queue? Otherwise it comes again, and its group must wait for it."""
        return self._dead_letters is not None

    def extend(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Let the visibility timeouts begin anew; the answer is those that were lost."""
        now = self._now()
        lost: list[Message] = []
        entries: list[Entry] = []
        for message in messages:
            receipt = _receipt(message)
            if receipt.settled:
                continue  # or what has just come back would be taken away again
            seconds = min(self._lease, int(receipt.since + LONGEST_LEASE - now))
            if now >= receipt.until or seconds < 1:
                lost.append(message)
            else:
                entries.append((message, {"ReceiptHandle": receipt.handle, "VisibilityTimeout": seconds}))
        gone = self._prompt.change_visibility(self.url, entries)
        for message, entry in entries:
            if message not in gone:
                _receipt(message).until = now + entry["VisibilityTimeout"]
        return lost + gone

    def settle(self, settlements: Sequence[Settlement]) -> Sequence[Message]:
        """Carry out the verdicts; the answer is those whose lease was lost.

        Where SQS fails, what can be done is done before the error is raised; the rest comes back by itself.
        """
        now = self._now()
        lost: list[Message] = []
        done: list[Entry] = []
        back: list[Entry] = []
        buried: list[tuple[Message, Bury]] = []
        for message, verdict in settlements:
            receipt = _receipt(message)
            self._receives.settled(message, verdict)  # even if SQS is not told: it comes back by itself then
            if receipt.settled:
                continue  # before an error made somebody settle them all once more
            if now >= receipt.until:
                lost.append(message)
                continue
            match verdict:
                case Bury():
                    buried.append((message, verdict))
                case Done(again=None):
                    done.append((message, {"ReceiptHandle": receipt.handle}))
                case Done(again=after) | Back(after=after):
                    seconds = min(ceil(after or 0), LONGEST_DELAY, int(receipt.since + LONGEST_LEASE - now))
                    back.append((message, {"ReceiptHandle": receipt.handle, "VisibilityTimeout": seconds}))
        errors: list[Exception] = []
        with _settling(done, errors):
            lost += self._prompt.delete(self.url, done)
        with _settling(back, errors):
            lost += self._prompt.change_visibility(self.url, back)
        for message, bury in buried:
            with _settling([(message, bury)], errors):
                lost += self._bury(message, bury)
        if errors:
            raise errors[0]
        return lost

    # -- what it asks SQS for

    def _look(self, dead_letters: DeadLetters) -> None:
        """Read what the queue says about itself, and find its dead letters."""
        about = self._api.attributes(self.url)
        self._lease = int(about["VisibilityTimeout"] if self.lease is None else self.lease)
        if not self._lease:
            raise ValueError(f"{self.name} has a visibility timeout of 0: say by lease how long a message is held")
        self.lease = float(self._lease)
        self._largest = min(self._largest, int(about["MaximumMessageSize"]))
        self._by_content = about.get("ContentBasedDeduplication") == "true"
        self._dead_letters = self._resting_place(dead_letters, about.get("RedrivePolicy"))
        self.redrives = "RedrivePolicy" in about
        """Does SQS itself move what was received too often? What kills its process is left to that, as what other
        processes gave back untouched counts as received too, and must not be taken for what kills."""
        if self._dead_letters is not None:
            self._largest_dead = int(self._api.attributes(self._dead_letters)["MaximumMessageSize"])

    def _resting_place(self, dead_letters: DeadLetters, redrive: str | None) -> str | None:
        """The URL of the dead-letter queue."""
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
            # where the answer got lost, the next attempt is given the same messages, instead of finding groups held
            request["ReceiveRequestAttemptId"] = uuid4().hex
        found = self._api.receive(self.url, **request)
        return [received(raw, self.fifo, self._now(), self._lease, self._receives) for raw in found]

    def _bury(self, message: Message, bury: Bury) -> list[Message]:
        """Send a message to the dead letters, and delete it when it is there."""
        receipt = _receipt(message)
        if self._dead_letters is None:
            log.warning("%s keeps %s, which is %s: %s", self.name, message.key, bury.kind, bury.reason)
            return []
        if not receipt.sent:
            request: dict[str, Any] = {
                "MessageBody": message.body,
                "MessageAttributes": dead(message.body, receipt.attributes, bury, self.name, self._largest_dead),
            }
            if self.fifo:
                request |= {"MessageGroupId": message.group, "MessageDeduplicationId": message.key}
            self._prompt.send(self._dead_letters, **request)
            receipt.sent = True
        return self._prompt.delete(self.url, [(message, {"ReceiptHandle": receipt.handle})])

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
def _settling(settlements: Sequence[tuple[Message, object]], errors: list[Exception]) -> Iterator[None]:
    """Messages whose verdicts are carried out; an error is kept, so that the others' are as well."""
    receipts = [_receipt(message) for message, _ in settlements]
    for receipt in receipts:
        receipt.settled = True
    try:
        yield
    except Exception as error:
        errors.append(error)
        for receipt in receipts:
            receipt.settled = False
