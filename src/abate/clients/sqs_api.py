"""Requests to SQS, by boto3: each is made once by botocore, and repeated by a policy; of a batch, what has failed.

An answer that doesn't say what became of a request leaves it open, and it is made again. What SQS holds against one
message of a batch, for good, is its receipt: it has run out, or its twelve hours have.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from itertools import islice
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from abate.call.policy import Policy
from abate.clock import Clock
from abate.decide.outcome import Outcome
from abate.errors import AbateError, LayeredRetryWarning
from abate.schedule.backoff import Backoff
from abate.work.source import Message

BATCH = 10
"""Messages that one request may be about."""
LONGEST_POLL = 20
"""Seconds; SQS waits no longer for a message."""

Entry: TypeAlias = tuple[Message, dict[str, Any]]
"""A message, and what a batch says about it."""

_REGION = re.compile(r"\b[a-z]{2}(?:-[a-z]+)+-\d\b")


class Unanswered(AbateError):
    """SQS has answered, and not said what became of a request.

    >>> raise Unanswered("SendMessage")
    Traceback (most recent call last):
    abate.clients.sqs_api.Unanswered: the answer to SendMessage doesn't say what became of it
    """

    def __init__(self, operation: str) -> None:
        super().__init__(f"the answer to {operation} doesn't say what became of it")
        self.operation = operation

    def __reduce__(self) -> tuple[type[Unanswered], tuple[str], dict[str, Any]]:
        return type(self), (self.operation,), self.__dict__


def client_for(url: str | None = None, **settings: Any) -> Any:
    """A client of boto3 for the queue at a URL, that makes one attempt of each request.

    The host of the URL is its endpoint, and names the region; without one both are found as boto3 does.

    >>> orders = client_for("https://sqs.eu-west-1.amazonaws.com/123456789012/orders")
    >>> orders.meta.region_name, orders.meta.config.retries["total_max_attempts"]
    ('eu-west-1', 1)
    """
    boto3, botocore = libraries()
    session = boto3.session.Session()
    own = {"config": botocore.config(connect_timeout=5.0, read_timeout=LONGEST_POLL + 10.0)}
    if url is not None:
        where = urlsplit(url)
        region = _REGION.search(where.netloc)
        own["endpoint_url"] = f"{where.scheme}://{where.netloc}"
        own["region_name"] = region[0] if region else session.region_name or "us-east-1"
    return session.client("sqs", **{**own, **settings})


def libraries() -> tuple[Any, Any]:
    """boto3, and what abate makes of botocore."""
    try:
        import boto3  # type: ignore[import-untyped]

        from abate.clients import botocore
    except ImportError as error:
        raise ImportError("SQS needs boto3: install abate[sqs]") from error
    return boto3, botocore


class Api:
    """SQS, as one client and one policy know it."""

    __slots__ = ("_botocore", "_policy", "client", "longest_poll")

    def __init__(self, client: Any, policy: Policy) -> None:
        _, self._botocore = libraries()
        self._policy = policy
        self.client = client
        self.longest_poll = LONGEST_POLL
        patience = client.meta.config.read_timeout
        if patience is not None:  # what came later would be lost on the way
            self.longest_poll = max(0, min(LONGEST_POLL, int(patience) - 1))

    @classmethod
    def of(cls, name: str, client: Any, clock: Clock | None) -> Api:
        """SQS for the queue of this name, by a client that makes one attempt of each request."""
        if not hasattr(client, "receive_message"):
            raise TypeError(f"client must be a client of boto3 for SQS, not {client!r}")
        if (client.meta.config.retries or {}).get("total_max_attempts") != 1:
            warnings.warn(
                "the client's own retries multiply with those of the queue: make it with"
                " config=abate.clients.botocore.config()",
                LayeredRetryWarning,
                stacklevel=3,
            )
        _, botocore = libraries()
        on = (botocore.transient, Unanswered)
        return cls(client, Policy(name=f"sqs {name}", on=on, attempts=4, backoff=Backoff(0.2, 5.0), clock=clock))

    def within(self, seconds: float) -> Api:
        """The same, for requests that nobody wants after so many seconds."""
        return Api(self.client, self._policy.replace(timeout=seconds))

    def attributes(self, url: str) -> Mapping[str, str]:
        """What a queue says about itself."""

        def attempt() -> Mapping[str, str]:
            about: Mapping[str, str]
            about = self.client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]).get("Attributes", {})
            if "VisibilityTimeout" not in about or "MaximumMessageSize" not in about:
                raise Unanswered("GetQueueAttributes")
            return about

        return self._policy.call(attempt)

    def url(self, arn: str) -> str:
        """The URL of the queue with this ARN."""
        *_, account, name = arn.split(":")

        def attempt() -> str:
            found: str | None
            found = self.client.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account).get("QueueUrl")
            if found is None:
                raise Unanswered("GetQueueUrl")
            return found

        return self._policy.call(attempt)

    def receive(self, url: str, **request: Any) -> list[Mapping[str, Any]]:
        """Messages in the words of boto3, with all attributes."""
        answer = self._policy.call(
            self.client.receive_message,
            QueueUrl=url,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
            **request,
        )
        return list(answer.get("Messages", ()))

    def send(self, url: str, **request: Any) -> str:
        """Send a message: its id, by which SQS says that it has it."""

        def attempt() -> str:
            sent: str | None = self.client.send_message(QueueUrl=url, **request).get("MessageId")
            if sent is None:
                raise Unanswered("SendMessage")
            return sent

        return self._policy.call(attempt)

    def delete(self, url: str, entries: list[Entry]) -> list[Message]:
        """Delete messages: those whose receipts don't hold any more."""
        return self._batches("DeleteMessageBatch", url, entries)

    def change_visibility(self, url: str, entries: list[Entry]) -> list[Message]:
        """Let messages be visible later, or now: those whose receipts don't hold any more."""
        return self._batches("ChangeMessageVisibilityBatch", url, entries)

    def _batches(self, operation: str, url: str, entries: list[Entry]) -> list[Message]:
        lost: list[Message] = []
        rest = iter(entries)
        while some := list(islice(rest, BATCH)):
            lost += self._batch(operation, url, some)
        return lost

    def _batch(self, operation: str, url: str, entries: list[Entry]) -> list[Message]:
        deletes = operation == "DeleteMessageBatch"
        request = self.client.delete_message_batch if deletes else self.client.change_message_visibility_batch
        left = {str(place): entry for place, entry in enumerate(entries)}
        lost: list[Message] = []

        def attempt() -> None:
            answer = request(QueueUrl=url, Entries=[{"Id": place, **entry} for place, (_, entry) in left.items()])
            for done in answer.get("Successful", ()):
                left.pop(done["Id"], None)
            error: Exception = Unanswered(operation)
            for failed in answer.get("Failed", ()):
                alone = self._alone(operation, failed)
                if self._passes(alone):
                    error = alone
                elif failed["Id"] in left:
                    lost.append(left.pop(failed["Id"])[0])
            if left:
                raise error

        self._policy.call(attempt)
        return lost

    def _alone(self, operation: str, failed: Mapping[str, Any]) -> Exception:
        """What failed in a batch, as the error that it would have been alone."""
        answer = {
            "Error": {"Code": failed.get("Code", ""), "Message": failed.get("Message", "")},
            "ResponseMetadata": {"HTTPStatusCode": 400 if failed.get("SenderFault") else 500},
        }
        error: Exception = self._botocore.exceptions.ClientError(answer, operation)
        return error

    def _passes(self, error: Exception) -> bool:
        ruling = self._botocore.transient.judge(Outcome(error))
        return bool(ruling and ruling.retry)
