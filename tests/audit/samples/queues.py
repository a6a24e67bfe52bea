import asyncio
import queue


class Worker:
    def __init__(self):
        self.todo = queue.Queue()  # found: unbounded-queue
        self.bounded = queue.Queue(maxsize=100)
        self.results = asyncio.Queue()

    def submit(self, job):
        self.todo.put(job)
        self.bounded.put_nowait(job)

    def on_message(self, channel, method, properties, body):
        try:
            handle(body)
        except Exception:
            channel.basic_nack(method.delivery_tag)  # found: requeue-without-delay

    def on_other(self, channel, method, properties, body):
        try:
            handle(body)
        except Exception:
            channel.basic_nack(method.delivery_tag, requeue=False)


async def on_nats(msg):
    await msg.nak()  # found: requeue-without-delay
    await msg.nak(delay=5)


def on_sqs(sqs, url, handle):
    try:
        work(handle)
    except ValueError:
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)  # found: requeue-without-delay
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=60)


def local():
    results = queue.Queue()
    results.put(1)
    return results


class Counted:
    def __init__(self):
        self._lines = queue.Queue()

    def send(self, line):
        if self._lines.qsize() < 100:
            self._lines.put(line)


class Buffered:
    def __init__(self, max_buffer_length):
        self.max_buffer_length = max_buffer_length
        self._lines = queue.Queue()

    def send(self, line):
        self._lines.put(line)


class Stops:
    def __init__(self):
        self._stop_requests = queue.Queue()

    def stop(self):
        self._stop_requests.put(True)
