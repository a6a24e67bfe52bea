"""A consumer as an AWS Lambda function: works off the batch that an event source mapping brings from SQS.

The mapping must have ``ReportBatchItemFailures`` on: the function answers with the messages that are not done, and
Lambda deletes the others. The rules:

* messages are handled one after the other, in their order;
* a message that failed is reported. With `delays` it also becomes visible after the delay that the consumer's backoff
  gives; otherwise when the queue's visibility timeout is over;
* one that is **buried** goes to the dead-letter queue with the reason, and counts as done. Without `dead_letters`, or
  where that can't be reached, it is reported, and the queue's own redrive policy moves it in the end;
* what was not touched is reported too: when the function's time is about to run out, when the **fuse** blows or is
  blown (it belongs to the container), and behind a failure in a **FIFO** queue: all that follows, as AWS asks for, or
  with ``hold="group"`` all that follows in its group. For SQS that is a receive like any other; the container
  remembers that it was no attempt, so that it brings no message nearer to `max_receives`;
* a message that was received more often than `max_receives` may have killed the function in the middle of its batches:
  it is handled alone, and the others of the batch are reported. The next one that was received so often has its turn
  with the next batch. None is buried unless it was handled and failed: a container can't know what other containers
  have given back untouched, or what died beside another message, so the end of one that kills is left to the queue's
  own ``maxReceiveCount``, which must be above twice `max_receives`.

boto3 is needed for `delays` and `dead_letters` alone. Whatever fails beside the handler (a message's delay, a dead
letter) is logged, and the message reported: a batch never fails as a whole but for an event that can't be read.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import copy_context
from functools import update_wrapper
from inspect import isawaitable
from math import inf
from typing import Any, TypeAlias, cast

from abate import clock as clocks
from abate import events
from abate.clients.sqs import DeadLetters, Queue, received
from abate.clients.sqs_api import client_for
from abate.clients.sqs_receives import Receives
from abate.errors import choice, number
from abate.logs import Log
from abate.schedule.deadlines import deadline
from abate.work.consumer import Consumer
from abate.work.consumer import consumer as plain_consumer
from abate.work.source import Back, Bury, Done, Message, Verdict
from abate.work.worker import report, report_buried, warn_of_value

Response: TypeAlias = dict[str, list[dict[str, str]]]
"""What Lambda wants to know: the messages that are not done."""

log = Log("abate.work")


def consumer(
    *,
    dead_letters: DeadLetters = False,
    delays: bool = False,
    client: Any = None,
    margin: float = 5.0,
    hold: str = "batch",
) -> Callable[[Callable[..., Any]], Handler]:
    """Make a Lambda function of an `abate.consumer`, or of a function that handles one `Message`.

    * `dead_letters`: the URL of the queue for what is buried; None for the one of the redrive policy; False for none.
    * `delays`: let what failed be visible after the consumer's backoff. The function's role needs
      ``sqs:ChangeMessageVisibility`` for it, and ``sqs:GetQueueAttributes``.
    * `client`: of boto3 for SQS; its own unless given.
    * `margin`: no message is begun when the function has fewer seconds left, and none is given more.
    * `hold`: what a failure in a FIFO queue holds back: the rest of the ``"batch"``, or of its ``"group"``.

    >>> import abate
    >>> @consumer()
    ... @abate.consumer(on=ConnectionError)
    ... def handler(message):
    ...     if message.body == "two":
    ...         raise ConnectionError
    >>> about = {"eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:eu-west-1:123456789012:orders"}
    >>> records = [{"messageId": body, "receiptHandle": "r", "body": body, **about} for body in ("one", "two")]
    >>> handler({"Records": records}, None)
    {'batchItemFailures': [{'itemIdentifier': 'two'}]}
    """
    number("margin", margin, least=0)
    choice("hold", hold, ("batch", "group"))

    def decorate(function: Callable[..., Any]) -> Handler:
        handle = function if isinstance(function, Consumer) else plain_consumer()(function)
        return Handler(handle, Queues(client, dead_letters, delays), margin, hold)

    return decorate


class Queues:
    """The queues that a function's batches come from, as far as there is something to say to them."""

    __slots__ = ("_client", "_dead_letters", "_delays", "_known", "_own")

    def __init__(self, client: Any, dead_letters: DeadLetters, delays: bool) -> None:
        self._client = client
        self._dead_letters: DeadLetters = dead_letters
        self._delays = delays
        self._known: dict[str, Queue] = {}
        self._own = client is None

    def close(self) -> None:
        """Close the connections, unless the client was given."""
        if self._own and self._client is not None:
            self._client.close()
            self._client = None
            self._known.clear()

    @property
    def buries(self) -> bool:
        """Are there dead letters to send to?"""
        return self._dead_letters is not False

    def bury(self, arn: str, message: Message, bury: Bury) -> bool:
        """Send a message to the dead letters: is it there?"""
        if not self.buries:
            return False
        try:
            return not self._queue(arn).settle([(message, bury)])
        except Exception:
            log.exception("%s could not be buried, and is reported as failed", message.key)
            return False

    def delay(self, arn: str, back: Sequence[tuple[Message, Back]]) -> None:
        """Let messages be visible after their delays."""
        if not self._delays or not back:
            return
        try:
            self._queue(arn).settle(back)
        except Exception:
            log.exception("%d messages have no delay but the queue's visibility timeout", len(back))

    def _queue(self, arn: str) -> Queue:
        if arn not in self._known:
            *_, region, account, name = arn.split(":")
            self._client = self._client or client_for(region_name=region)
            url = f"{self._client.meta.endpoint_url}/{account}/{name}"
            self._known[arn] = Queue(url, client=self._client, dead_letters=self._dead_letters)
        return self._known[arn]


class Batch:
    """The messages of one event that are not done, and after what delays they are to come back."""

    __slots__ = ("_fifo", "_held", "_hold", "back", "failed")

    def __init__(self, fifo: bool, hold: str) -> None:
        self._fifo = fifo
        self._hold = hold
        self._held: dict[str | None, Back | None] = {}  # by group; by None for all
        self.failed: list[Message] = []
        self.back: list[tuple[Message, Back]] = []

    def fail(self, message: Message, after: float | None) -> None:
        """A message is not done, nor is what it holds back; None for no delay but the queue's own."""
        self._give_back(message, None if after is None else Back(after))
        if self._fifo:
            behind = None if after is None else Back(after, touched=False)
            self._held[message.group if self._hold == "group" else None] = behind

    def pass_over(self, message: Message) -> None:
        """A message is not touched, nor is what it holds back."""
        self._give_back(message, Back(0.0, touched=False))
        if self._fifo:
            self._held[message.group] = Back(0.0, touched=False)

    def stop(self, after: float) -> None:
        """Nothing more is done: all that follows comes back after so many seconds, so that none overtakes another."""
        self._held[None] = Back(after, touched=False)

    def holds(self, message: Message) -> bool:
        """Give a message back, untouched, if it is held back by one before it."""
        for group in (None, message.group):
            if group in self._held:
                self._give_back(message, self._held[group])
                return True
        return False

    def _give_back(self, message: Message, back: Back | None) -> None:
        self.failed.append(message)
        if back is not None:
            self.back.append((message, back))

    def response(self) -> Response:
        """What Lambda wants to know."""
        return {"batchItemFailures": [{"itemIdentifier": str(message.key)} for message in self.failed]}


class Handler:
    """A consumer as a Lambda function; made by `consumer`. `tally` counts how messages ended, since it was made.

    An async handler has one event loop for all batches, so that its clients may outlive one.
    """

    def __init__(self, consumer: Consumer[..., Any], queues: Queues, margin: float, hold: str) -> None:
        self.consumer = consumer
        self.name = str(consumer.name)
        self.tally: Counter[str] = Counter()
        self._queues = queues
        self._margin = margin
        self._hold = hold
        self._receives = Receives()
        self._runner: asyncio.Runner | None = None
        update_wrapper(cast("Callable[..., Any]", self), consumer.function)

    def __call__(self, event: Any, context: Any = None) -> Response:
        """Handle an event of Lambda."""
        arn, messages = _read(event, self._receives)
        if context is None:
            return self._batch(arn, messages, inf)
        left = context.get_remaining_time_in_millis() / 1000
        with deadline(max(0.0, left)):
            return self._batch(arn, messages, clocks.current().now() + left - self._margin)

    def close(self) -> None:
        """End the event loop of an async handler, and the connections to SQS."""
        self._queues.close()
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _batch(self, arn: str, messages: Sequence[Message], ends: float) -> Response:
        """Handle messages until the instant `ends`."""
        batch, fuse, clock = Batch(arn.endswith(".fifo"), self._hold), self.consumer.fuse, clocks.current()
        suspects = {message for message in messages if self._suspects(message)}
        alone = _first(messages, suspects)
        for message in messages:
            now = clock.now()
            if fuse is not None and fuse.room(now) < 1:
                batch.stop(max(0.0, fuse.opens - now))
            elif now >= ends:
                batch.stop(0.0)
            if batch.holds(message):
                self._untouched(message)
            elif message is not alone and (alone is not None or message in suspects):
                batch.pass_over(message)
                self._untouched(message)
            else:
                self._work(arn, batch, message, ends - now)
        self._queues.delay(arn, batch.back)
        return batch.response()

    def _suspects(self, message: Message) -> bool:
        return self.consumer.judge.doubtful(message.receives)

    def _untouched(self, message: Message) -> None:
        self.tally["returned"] += 1
        self._receives.settled(message, Back(0.0, touched=False))

    def _work(self, arn: str, batch: Batch, message: Message, left: float) -> None:
        judge, name, clock = self.consumer.judge, self.name, clocks.current()
        began = clock.now()
        error: BaseException | None = None
        try:
            answer = self._handled(message, left)
            judgement = judge.returned(answer)
            if judge.surprised(answer):
                warn_of_value(name, answer)
        except BaseException as failure:  # an exit too: what was done before must not come again
            error = failure
            judgement = judge.judged(failure, message.receives)
        self.tally[judgement.ending] += 1
        settled = self._settle(arn, batch, message, judgement.verdict)
        fuse = self.consumer.fuse
        pause = 0.0
        if fuse is not None and judgement.failed is not None:
            pause = fuse.record(not judgement.failed, clock.now())
        report(name, message, judgement, clock.now() - began, error)
        if settled:
            report_buried(name, message, judgement.verdict)
        elif isinstance(judgement.verdict, Bury):
            kind, reason = judgement.verdict.kind, judgement.verdict.reason
            log.error("%s: %r could not be buried, and comes again (%s): %s", name, message.key, kind, reason)
        if pause:
            log.warning("%s: most messages fail: none are taken for %.3g s", name, pause)
            events.emit(events.FuseBlown(name, pause))

    def _settle(self, arn: str, batch: Batch, message: Message, verdict: Verdict) -> bool:
        """Carry out a verdict: was it possible? Where there are no dead letters of ours, the queue's own are."""
        self._receives.settled(message, verdict)
        match verdict:
            case Bury():
                if not self._queues.bury(arn, message, verdict):
                    batch.fail(message, None)
                    return not self._queues.buries
            case Done(again=None):
                pass
            case Done(again=after) | Back(after=after):
                batch.fail(message, after)
        return True

    def _handled(self, message: Message, left: float) -> object:
        """Call the handler, and run what it answers with if that is to be awaited."""
        limit = min(left, inf if self.consumer.timeout is None else self.consumer.timeout)
        if limit == inf:
            return self._awaited(self.consumer(message), None)
        with deadline(limit):
            return self._awaited(self.consumer(message), limit)

    def _awaited(self, answer: Any, limit: float | None) -> object:
        if not isawaitable(answer):
            return answer
        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(_within(answer, limit), context=copy_context())


async def _within(answer: Any, limit: float | None) -> object:
    if limit is None:
        return await answer
    cut = clocks.current().within(limit)
    async with cut:
        return await answer


def _first(messages: Sequence[Message], suspects: Collection[Message]) -> Message | None:
    """The first suspect of a batch that is not behind another of its group."""
    groups: set[str] = set()
    for message in messages:
        if message in suspects and message.group not in groups:
            return message
        if message.group is not None:
            groups.add(message.group)
    return None


def _read(event: Any, receives: Receives) -> tuple[str, list[Message]]:
    """The queue and the messages of an event, or an error that says why it is none of SQS."""
    records = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(records, Sequence) or isinstance(records, str):
        raise ValueError(f"the event must be one of SQS, with a list of Records, not {_shown(event)}")
    messages = [_message(record, receives) for record in records]
    queues = {record["eventSourceARN"] for record in records}
    if len(queues) > 1:
        raise ValueError(f"the records of one event must be of one queue, not of {', '.join(sorted(queues))}")
    return (queues.pop() if queues else ""), messages


def _message(record: Any, receives: Receives) -> Message:
    fields = ("messageId", "receiptHandle", "body", "eventSourceARN")
    if not isinstance(record, Mapping) or not all(isinstance(record.get(field), str) for field in fields):
        raise ValueError(f"a record of SQS must have {', '.join(fields)}, each a string, not {_shown(record)}")
    if len(record["eventSourceARN"].split(":")) != 6 or record.get("eventSource", "aws:sqs") != "aws:sqs":
        raise ValueError(f"a record must be of an SQS queue, not {_shown(record)}")
    attributes, about = record.get("messageAttributes") or {}, record.get("attributes") or {}
    if not isinstance(attributes, Mapping) or not isinstance(about, Mapping):
        raise ValueError(f"a record of SQS must have attributes by name, not {_shown(record)}")
    group = about.get("MessageGroupId")
    if group is not None and not isinstance(group, str):
        raise ValueError(f"the MessageGroupId of a record must be a string, not {_shown(group)}")
    raw = {
        "MessageId": record["messageId"],
        "ReceiptHandle": record["receiptHandle"],
        "Body": record["body"],
        "Attributes": about,
        "MessageAttributes": {name: _attribute(value) for name, value in attributes.items()},
    }
    # the lease is Lambda's: the function is ended when it is over
    return received(raw, record["eventSourceARN"].endswith(".fifo"), clocks.current().now(), inf, receives)


def _attribute(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not isinstance(value.get("dataType"), str):
        raise ValueError(f"an attribute of SQS must have a dataType, not {_shown(value)}")
    binary, text = value.get("binaryValue"), value.get("stringValue", "")
    if not isinstance(text, str) or not isinstance(binary, (str, type(None))):
        raise ValueError(f"the value of an attribute of SQS must be a string, not {_shown(value)}")
    if binary is None:
        return {"DataType": value["dataType"], "StringValue": text}
    try:
        return {"DataType": value["dataType"], "BinaryValue": b64decode(binary)}
    except ValueError as error:
        raise ValueError(f"an attribute of SQS that is binary must be in base64, not {_shown(value)}") from error


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deeply"
    return text if len(text) <= 200 else f"{text[:200]}…"
