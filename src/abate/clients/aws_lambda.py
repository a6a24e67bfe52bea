"""A consumer as an AWS Lambda function: handles the batch that an event source mapping brings from SQS.

The mapping must have ``ReportBatchItemFailures`` on: the function returns the messages that are not done, and Lambda
deletes the others. The rules:

* Messages are handled one after the other, in their order.
* A failed message is reported. With `delays` it becomes visible after the delay of the consumer's backoff; otherwise
  when the queue's visibility timeout is over.
* A **buried** message goes to the dead-letter queue with the reason, and counts as done. Without `dead_letters`, or if
  that queue can't be reached, it is reported, and the queue's own redrive policy moves it in the end.
* Untouched messages are reported too: when the function's time is about to run out, while the **circuit breaker** is
  open (it belongs to the container), and after a failure in a **FIFO** queue: all that follow, as AWS requires, or with
  ``hold="group"`` all that follow in its group. SQS counts that as a receive; the container remembers that it was no
  attempt, so that it does not bring the message nearer to `max_receives`.
* A message that was received more often than `max_receives` is a **crash suspect**: it may have killed the function in
  the middle of its batches. It is handled alone, and the others of the batch are reported; of several, the others have
  their turn in later batches. It is buried only if it was handled and failed: a container can't know how often other
  containers returned a message unhandled, or whether another message caused the crash. So the queue's own
  ``maxReceiveCount``, which must be above twice `max_receives`, removes a message that crashes the function.

boto3 is needed for `delays` and `dead_letters` only. Any failure besides the handler's (setting a delay, sending a dead
letter) is logged, and the message reported: a batch fails as a whole only if the event can't be read.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from contextvars import copy_context
from functools import update_wrapper
from inspect import isawaitable
from math import inf
from typing import Any, TypeAlias, cast

from abate import clock as clocks
from abate import event_sinks, events
from abate.clients.sqs import DeadLetters, Queue, decode_message
from abate.clients.sqs_api import client_for
from abate.clients.sqs_receive_counts import ReceiveCounts
from abate.errors import by_keyword, choice, number
from abate.logs import Log
from abate.schedule.deadlines import deadline
from abate.work.consumer import Consumer
from abate.work.consumer import consumer as plain_consumer
from abate.work.message_handler import report, report_dead_letter, warn_ignored_value
from abate.work.source import Back, Bury, Done, Message, Verdict

__all__ = ["consumer"]

Response: TypeAlias = dict[str, list[dict[str, str]]]
"""The response that Lambda expects: the messages that are not done."""

log = Log("abate.work")


@by_keyword("aws_lambda.consumer", "@aws_lambda.consumer()")
def consumer(
    *,
    dead_letters: DeadLetters = False,
    delays: bool = False,
    client: Any = None,
    margin: float = 5.0,
    hold: str = "batch",
) -> Callable[[Callable[..., Any]], Handler]:
    """Make a Lambda function of an `abate.consumer`, or of a function that handles one `Message`.

    * `dead_letters`: the URL of the dead-letter queue; None for that of the redrive policy; False for none.
    * `delays`: make failed messages visible after the consumer's backoff. The function's role needs
      ``sqs:ChangeMessageVisibility`` and ``sqs:GetQueueAttributes`` for it.
    * `client`: of boto3 for SQS; by default a new one.
    * `margin`: with fewer seconds left no message is begun, and a message's time ends this many seconds before the end.
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
        return Handler(handle, SourceQueues(client, dead_letters, delays), margin, hold)

    return decorate


class SourceQueues:
    """The queues that a function's batches come from, for delays and dead letters."""

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
        """Return whether there is a dead-letter queue."""
        return self._dead_letters is not False

    def bury(self, arn: str, message: Message, bury: Bury) -> bool:
        """Send a message to the dead-letter queue; return whether it is there."""
        if not self.buries:
            return False
        try:
            return not self._queue(arn).settle([(message, bury)])
        except Exception:
            log.exception("%s could not be buried, and is reported as failed", message.key)
            return False

    def delay(self, arn: str, back: Sequence[tuple[Message, Back]]) -> None:
        """Make messages visible after their delays."""
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


class BatchReport:
    """The messages of one event that are not done, and their delays."""

    __slots__ = ("_fifo", "_held", "_hold", "back", "failed")

    def __init__(self, fifo: bool, hold: str) -> None:
        self._fifo = fifo
        self._hold = hold
        self._held: dict[str | None, Back | None] = {}  # by group; None for all
        self.failed: list[Message] = []
        self.back: list[tuple[Message, Back]] = []

    def fail(self, message: Message, after: float | None) -> None:
        """Report a failed message and hold back what must wait for it; None means the queue's own delay."""
        self._give_back(message, None if after is None else Back(after))
        if self._fifo:
            behind = None if after is None else Back(after, touched=False)
            self._held[message.group if self._hold == "group" else None] = behind

    def skip(self, message: Message) -> None:
        """Report an untouched message, and hold back what must wait for it."""
        self._give_back(message, Back(0.0, touched=False))
        if self._fifo:
            self._held[message.group] = Back(0.0, touched=False)

    def stop(self, after: float) -> None:
        """Hold back all further messages for these seconds, so that none overtakes another."""
        self._held[None] = Back(after, touched=False)

    def give_back_if_held(self, message: Message) -> bool:
        """Return a message untouched if an earlier one holds it back; return whether that is so."""
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
        """Return the response for Lambda."""
        return {"batchItemFailures": [{"itemIdentifier": str(message.key)} for message in self.failed]}


class Handler:
    """A consumer as a Lambda function, made by `consumer`. `tally` counts how messages ended, since it was made.

    An async handler has one event loop for all batches, so that its clients can be reused.
    """

    def __init__(self, consumer: Consumer[..., Any], queues: SourceQueues, margin: float, hold: str) -> None:
        self.consumer = consumer
        self.name = str(consumer.name)
        self.tally: Counter[str] = Counter()
        self._queues = queues
        self._margin = margin
        self._hold = hold
        self._receive_counts = ReceiveCounts()
        self._runner: asyncio.Runner | None = None
        update_wrapper(cast("Callable[..., Any]", self), consumer.function)

    def __call__(self, event: Any, context: Any = None) -> Response:
        """Handle an event of Lambda."""
        arn, messages = _parse_event(event, self._receive_counts)
        if context is None:
            return self._batch(arn, messages, inf)
        left = context.get_remaining_time_in_millis() / 1000
        with closing(deadline(max(0.0, left))) as bound, bound:
            return self._batch(arn, messages, clocks.current().now() + left - self._margin)

    def close(self) -> None:
        """Close the event loop of an async handler, and the connections to SQS."""
        self._queues.close()
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _batch(self, arn: str, messages: Sequence[Message], ends: float) -> Response:
        """Handle messages until the instant `ends`."""
        batch, breaker, clock = BatchReport(arn.endswith(".fifo"), self._hold), self.consumer.breaker, clocks.current()
        suspects = {message for message in messages if self._is_crash_suspect(message)}
        alone = _suspect_to_run(messages, suspects)
        for message in messages:
            now = clock.now()
            if breaker is not None and breaker.allowed() < 1:
                batch.stop(breaker.seconds_until_half_open() or 0.0)
            elif now >= ends:
                batch.stop(0.0)
            if batch.give_back_if_held(message):
                self._count_returned(message)
            elif message is not alone and (alone is not None or message in suspects):
                batch.skip(message)
                self._count_returned(message)
            else:
                self._work(arn, batch, message, ends - now)
        self._queues.delay(arn, batch.back)
        return batch.response()

    def _is_crash_suspect(self, message: Message) -> bool:
        return self.consumer.verdict_rules.received_too_often(message.receives)

    def _count_returned(self, message: Message) -> None:
        self.tally["returned"] += 1
        self._receive_counts.settled(message, Back(0.0, touched=False))

    def _work(self, arn: str, batch: BatchReport, message: Message, left: float) -> None:
        rules, name, clock = self.consumer.verdict_rules, self.name, clocks.current()
        began = clock.now()
        error: BaseException | None = None
        try:
            answer = self._run_handler(message, left)
            decision = rules.returned(answer)
            if rules.first_ignored_value(answer):
                warn_ignored_value(name, answer)
        except BaseException as failure:  # also for an exit: what is done must not come again
            error = failure
            decision = rules.decide_raised(failure, message.receives)
        self.tally[decision.ending] += 1
        settled = self._settle(arn, batch, message, decision.verdict)
        breaker = self.consumer.breaker
        pause = 0.0
        if breaker is not None and decision.failed is not None:
            pause = breaker.record(not decision.failed, answered=decision.failed == "answered")
        report(name, message, decision, clock.now() - began, error)
        if settled:
            report_dead_letter(name, message, decision.verdict)
        elif isinstance(decision.verdict, Bury):
            kind, reason = decision.verdict.kind, decision.verdict.reason
            log.error("%s: %r could not be buried, and comes again (%s): %s", name, message.key, kind, reason)
        if pause:
            log.warning("%s: most messages fail: none are taken for %.3g s", name, pause)
            event_sinks.emit(events.BreakerOpened(name, pause))

    def _settle(self, arn: str, batch: BatchReport, message: Message, verdict: Verdict) -> bool:
        """Carry out a verdict; return whether that was possible. Without dead letters here, the queue has its own."""
        self._receive_counts.settled(message, verdict)
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

    def _run_handler(self, message: Message, left: float) -> object:
        """Call the handler, and run its coroutine if it returns one."""
        limit = min(left, inf if self.consumer.timeout is None else self.consumer.timeout)
        if limit == inf:
            return self._await_answer(self.consumer(message), None)
        with closing(deadline(limit)) as bound, bound:
            return self._await_answer(self.consumer(message), limit)

    def _await_answer(self, answer: Any, limit: float | None) -> object:
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


def _suspect_to_run(messages: Sequence[Message], suspects: Collection[Message]) -> Message | None:
    """Return the crash suspect to run alone: the first that is not behind another message of its group."""
    groups: set[str] = set()
    for message in messages:
        if message in suspects and message.group not in groups:
            return message
        if message.group is not None:
            groups.add(message.group)
    return None


def _parse_event(event: Any, receives: ReceiveCounts) -> tuple[str, list[Message]]:
    """Return the queue and the messages of an event, or raise an error if it is not an event of SQS."""
    records = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(records, Sequence) or isinstance(records, str):
        raise ValueError(f"the event must be one of SQS, with a list of Records, not {_shown(event)}")
    messages = [_parse_record(record, receives) for record in records]
    queues = {record["eventSourceARN"] for record in records}
    if len(queues) > 1:
        raise ValueError(f"the records of one event must be of one queue, not of {', '.join(sorted(queues))}")
    return (queues.pop() if queues else ""), messages


def _parse_record(record: Any, receives: ReceiveCounts) -> Message:
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
        "MessageAttributes": {name: _parse_attribute(value) for name, value in attributes.items()},
    }
    # Lambda keeps the lease: it ends the function when the lease is over
    return decode_message(raw, record["eventSourceARN"].endswith(".fifo"), clocks.current().now(), inf, receives)


def _parse_attribute(value: Any) -> dict[str, Any]:
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
