"""Requests to SQS, with boto3: botocore sends each once, and a policy retries it; of a batch only the failed entries.

A response that does not say what became of a request leaves it open, and it is made again. The only permanent error of
one message in a batch is its receipt: it has expired, or the message's twelve hours have.
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
from abate.optional_dependencies import requires_extra
from abate.schedule.backoff import Backoff
from abate.work.source import Message

BATCH = 10
"""Messages per request."""
MAX_POLL = 20
"""Seconds; SQS waits no longer for a message."""

Entry: TypeAlias = tuple[Message, dict[str, Any]]
"""A message, and its entry in a batch."""

_REGION = re.compile(r"\b[a-z]{2}(?:-[a-z]+)+-\d\b")


class IncompleteResponse(AbateError):
    """SQS has answered without saying what became of a request.

    >>> raise IncompleteResponse("SendMessage")
    Traceback (most recent call last):
    abate.clients.sqs_api.IncompleteResponse: the answer to SendMessage doesn't say what became of it
    """

    def __init__(self, operation: str) -> None:
        super().__init__(f"the answer to {operation} doesn't say what became of it")
        self.operation = operation

    def __reduce__(self) -> tuple[type[IncompleteResponse], tuple[str], dict[str, Any]]:
        return type(self), (self.operation,), self.__dict__


def client_for(url: str | None = None, **settings: Any) -> Any:
    """Return a boto3 client for the queue at a URL, with one attempt per request.

    The host of the URL is its endpoint, and names the region; without a URL boto3 finds both as usual.

    >>> orders = client_for("https://sqs.eu-west-1.amazonaws.com/123456789012/orders")
    >>> orders.meta.region_name, orders.meta.config.retries["total_max_attempts"]
    ('eu-west-1', 1)
    """
    boto3, botocore = import_boto3()
    session = boto3.session.Session()
    own = {"config": botocore.config(connect_timeout=5.0, read_timeout=MAX_POLL + 10.0)}
    if url is not None:
        where = urlsplit(url)
        region = _REGION.search(where.netloc)
        own["endpoint_url"] = f"{where.scheme}://{where.netloc}"
        own["region_name"] = region[0] if region else session.region_name or "us-east-1"
    return session.client("sqs", **{**own, **settings})


def import_boto3() -> tuple[Any, Any]:
    """Return boto3, and abate's module for botocore."""
    with requires_extra(by="abate.clients.sqs", extra="sqs"):
        import boto3  # type: ignore[import-untyped]
    from abate.clients import botocore

    return boto3, botocore


class SqsApi:
    """SQS through one client and one policy."""

    __slots__ = ("_botocore", "_policy", "client", "max_poll")

    def __init__(self, client: Any, policy: Policy) -> None:
        _, self._botocore = import_boto3()
        self._policy = policy
        self.client = client
        self.max_poll = MAX_POLL
        patience = client.meta.config.read_timeout
        if patience is not None:  # a response after that would be lost
            self.max_poll = max(0, min(MAX_POLL, int(patience) - 1))

    @classmethod
    def of(cls, name: str, client: Any, clock: Clock | None) -> SqsApi:
        """Return the API for the queue of this name; `client` makes one attempt per request."""
        if not hasattr(client, "receive_message"):
            raise TypeError(f"client must be a client of boto3 for SQS, not {client!r}")
        if (client.meta.config.retries or {}).get("total_max_attempts") != 1:
            warnings.warn(
                "the client's own retries multiply with those of the queue: make it with"
                " config=abate.clients.botocore.config()",
                LayeredRetryWarning,
                stacklevel=3,
            )
        _, botocore = import_boto3()
        on = (botocore.transient, IncompleteResponse)
        return cls(client, Policy(name=f"sqs {name}", on=on, max_attempts=4, backoff=Backoff(0.2, 5.0), clock=clock))

    def within(self, seconds: float) -> SqsApi:
        """Return the same API with a timeout for each request."""
        return SqsApi(self.client, self._policy.replace(timeout=seconds))

    def attributes(self, url: str) -> Mapping[str, str]:
        """Return the attributes of a queue."""

        def attempt() -> Mapping[str, str]:
            about: Mapping[str, str]
            about = self.client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]).get("Attributes", {})
            if "VisibilityTimeout" not in about or "MaximumMessageSize" not in about:
                raise IncompleteResponse("GetQueueAttributes")
            return about

        return self._policy.call(attempt)

    def url(self, arn: str) -> str:
        """Return the URL of the queue with this ARN."""
        *_, account, name = arn.split(":")

        def attempt() -> str:
            found: str | None
            found = self.client.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account).get("QueueUrl")
            if found is None:
                raise IncompleteResponse("GetQueueUrl")
            return found

        return self._policy.call(attempt)

    def receive(self, url: str, **request: Any) -> list[Mapping[str, Any]]:
        """Return messages in boto3's form, with all attributes."""
        answer = self._policy.call(
            self.client.receive_message,
            QueueUrl=url,
            MessageSystemAttributeNames=["All"],
            MessageAttributeNames=["All"],
            **request,
        )
        return list(answer.get("Messages", ()))

    def send(self, url: str, **request: Any) -> str:
        """Send a message, and return its id, the receipt of SQS."""

        def attempt() -> str:
            sent: str | None = self.client.send_message(QueueUrl=url, **request).get("MessageId")
            if sent is None:
                raise IncompleteResponse("SendMessage")
            return sent

        return self._policy.call(attempt)

    def delete(self, url: str, entries: list[Entry]) -> list[Message]:
        """Delete messages, and return those whose receipts have expired."""
        return self._batches("DeleteMessageBatch", url, entries)

    def change_visibility(self, url: str, entries: list[Entry]) -> list[Message]:
        """Change when messages become visible, and return those whose receipts have expired."""
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
            error: Exception = IncompleteResponse(operation)
            for failed in answer.get("Failed", ()):
                entry_error = self._entry_error(operation, failed)
                if self._is_transient(entry_error):
                    error = entry_error
                elif failed["Id"] in left:
                    lost.append(left.pop(failed["Id"])[0])
            if left:
                raise error

        self._policy.call(attempt)
        return lost

    def _entry_error(self, operation: str, failed: Mapping[str, Any]) -> Exception:
        """Return an entry's failure in a batch as the error of a single request."""
        answer = {
            "Error": {"Code": failed.get("Code", ""), "Message": failed.get("Message", "")},
            "ResponseMetadata": {"HTTPStatusCode": 400 if failed.get("SenderFault") else 500},
        }
        error: Exception = self._botocore.exceptions.ClientError(answer, operation)
        return error

    def _is_transient(self, error: Exception) -> bool:
        ruling = self._botocore.transient.judge(Outcome(error))
        return bool(ruling and ruling.retry)
