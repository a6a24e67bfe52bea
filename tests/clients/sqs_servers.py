"""Real servers that speak SQS, as processes on loopback: moto and ministack. And a front for them that misbehaves.

Their gaps hardly overlap. moto takes old receipt handles as if they were new, and characters that SQS refuses;
ministack forgets no more than SQS does, but takes any visibility timeout.
"""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

from abate.clients.sqs import Queue
from abate.clients.sqs_api import client_for

KINDS = ("moto", "ministack")
KEYS = {"aws_access_key_id": "id", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
LIMIT = 30.0
"""Seconds; nothing here takes as long, it only keeps a broken test from hanging."""
AGES = "600"
"""Seconds; what is visible again within a test didn't wait for its visibility timeout."""

COMMANDS = {
    "moto": ["-m", "moto.server", "-H", "127.0.0.1"],
    "ministack": ["-m", "ministack"],
}
_names = count()


def eventually(condition):
    """Wait until a condition holds: what it answers."""
    end = time.monotonic() + LIMIT
    while not (answer := condition()):
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.02)
    return answer


def free_port():
    """A port at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Sqs:
    """A server, with a client that makes one attempt of each request."""

    def __init__(self, kind, port):
        self.kind = kind
        self.endpoint = f"http://127.0.0.1:{port}"
        self.client = client_for(self.endpoint, **KEYS)

    def create(self, *, dead=None, fifo=False, **attributes):
        """Make a queue: its URL. `dead` is the URL of the queue for its dead letters."""
        name = f"q{next(_names)}" + ".fifo" * fifo
        attributes.setdefault("VisibilityTimeout", AGES)
        if fifo:
            attributes["FifoQueue"] = "true"
        if dead is not None:
            attributes["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": self.arn(dead), "maxReceiveCount": 100})
        return self.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]

    def opened(self, *, fifo=False, client=None, **settings):
        """A new queue as a source, and the URL of the queue for its dead letters."""
        dead = self.create(fifo=fifo)
        return Queue(self.create(fifo=fifo, dead=dead), client=client or self.client, **settings), dead

    def arn(self, url):
        """The ARN of a queue."""
        about = self.client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        return about["Attributes"]["QueueArn"]

    def received(self, url, **request):
        """What the queue has to give now, in the words of boto3."""
        request = {"VisibilityTimeout": int(AGES), "MaxNumberOfMessages": 10, **request}
        answer = self.client.receive_message(
            QueueUrl=url, MessageSystemAttributeNames=["All"], MessageAttributeNames=["All"], **request
        )
        return answer.get("Messages", [])

    def held(self, url):
        """How many messages a queue has, whether they are visible or not."""
        about = self.client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        return sum(int(about.get(f"ApproximateNumberOfMessages{which}", 0)) for which in ("", "NotVisible", "Delayed"))

    @contextlib.contextmanager
    def watched(self, operation, client=None):
        """The parameters of the requests that are made within the block."""
        seen = []
        hooks = (client or self.client).meta.events
        event = f"provide-client-params.sqs.{operation}"

        def watch(params, **_):
            seen.append(params)

        hooks.register(event, watch)
        try:
            yield seen
        finally:
            hooks.unregister(event, watch)


@contextlib.contextmanager
def running(kind, directory):
    """A server of a kind, while the block lasts."""
    port = free_port()
    command = [sys.executable, *COMMANDS[kind]]
    if kind == "moto":
        command += ["-p", str(port)]
    settings = {
        "GATEWAY_PORT": str(port),
        "BIND_HOST": "127.0.0.1",
        "SERVICES": "sqs",
        "SFTP_ENABLED": "0",  # these two would listen on all interfaces
        "IOT_MTLS_ENABLED": "0",
    }
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=directory, env={**os.environ, **settings}, stdin=subprocess.DEVNULL
        )
    server = Sqs(kind, port)
    try:
        eventually(lambda: _listens(port) or process.poll() is not None)
        assert process.poll() is None, (directory / "log").read_text()
        yield server
    finally:
        server.client.close()
        process.kill()
        process.wait(LIMIT)


def _listens(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


# -- trouble on the way


def refused(front):
    """Break the connection off, unanswered."""
    front.close_connection = True
    front.connection.shutdown(socket.SHUT_RDWR)


def unavailable(front):
    """Answer 503."""
    front.answer(503, b"{}")


def busy(front):
    """Answer 503, and ask to be left alone for a while."""
    front.answer(503, b"{}", Retry_After="5")


def garbage(front):
    """Answer 200, with something that is no JSON."""
    front.answer(200, b"<html>welcome to the captive portal</html>")


def unheard(front):
    """Do as asked, and break the connection off before the answer."""
    front.passed_on()
    refused(front)


def in_part(code, sender, *places):
    """Leave out those of a batch at these places, and say that they failed."""

    def behave(front):
        request = json.loads(front.body)
        left_out = [request["Entries"][place]["Id"] for place in places]
        request["Entries"] = [entry for entry in request["Entries"] if entry["Id"] not in left_out]
        status, body = front.passed_on(json.dumps(request).encode()) if request["Entries"] else (200, b"{}")
        answer = json.loads(body)
        failed = [{"Id": id_, "Code": code, "SenderFault": sender, "Message": "told so"} for id_ in left_out]
        answer["Failed"] = [*answer.get("Failed", []), *failed]
        front.answer(status, json.dumps(answer).encode())

    return behave


class Front:
    """Stands before a server, and misbehaves as told: ``troubles["SendMessage"]`` are used up, one for each request."""

    def __init__(self, sqs):
        self.sqs = sqs
        self.troubles = defaultdict(deque)
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            timeout = LIMIT

            def do_POST(self):
                self.body = self.rfile.read(int(self.headers["Content-Length"]))
                troubles = front.troubles[self.headers.get("X-Amz-Target", ".").rpartition(".")[2]]
                if troubles:
                    troubles.popleft()(self)
                else:
                    self.answer(*self.passed_on())

            def passed_on(self, body=None):
                """What the server answers."""
                body = self.body if body is None else body
                connection = http.client.HTTPConnection(sqs.endpoint.removeprefix("http://"), timeout=LIMIT)
                try:
                    headers = {**dict(self.headers), "Content-Length": str(len(body))}
                    connection.request("POST", self.path, body, headers)
                    response = connection.getresponse()
                    return response.status, response.read()
                finally:
                    connection.close()

            def answer(self, status, body, **headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Type", "application/x-amz-json-1.0")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.client = client_for(f"http://127.0.0.1:{self._server.server_port}", **KEYS)

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.client.close()
        self._server.shutdown()
        self._server.server_close()
