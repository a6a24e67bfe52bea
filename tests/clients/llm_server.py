"""A local server that speaks the protocols of OpenAI and Anthropic on real sockets, and fails as a test says.

Requests that no behaviour of the script is left for are answered by path, as a stream if the body asks for one; the
answer's text is `TEXT`, in two pieces.
"""

from __future__ import annotations

import json
import threading

from tests.clients.server import Behaviour, Request, Server, reset, respond

TEXT = "Hello, world"
PIECES = ("Hello, ", "world")

RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "output": [
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": TEXT, "annotations": []}],
        }
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
ANSWERS = {
    "/v1/chat/completions": {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}],
    },
    "/v1/responses": RESPONSE,
    "/v1/messages": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": TEXT}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 2},
    },
}


def event(data: dict | str, name: str | None = None) -> str:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "") + f"data: {text}\n\n"


def typed(kind: str, **fields: object) -> str:
    """An event whose data names its type as well."""
    return event({"type": kind, **fields}, kind)


def chunk(delta: dict, finish_reason: str | None = None) -> str:
    """A chunk of chat completions."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return event({"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


MESSAGE = {**ANSWERS["/v1/messages"], "content": [], "stop_reason": None}
ITEM = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
PART = {"type": "output_text", "text": "", "annotations": []}
PLACE = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
BEGINNINGS = {
    "/v1/chat/completions": [": processing\n\n", chunk({"role": "assistant", "content": ""})],
    "/v1/responses": [
        typed("response.created", sequence_number=0, response={**RESPONSE, "output": []})
        + typed("response.in_progress", sequence_number=1, response={**RESPONSE, "output": []}),
        typed("response.output_item.added", sequence_number=2, output_index=0, item=ITEM)
        + typed("response.content_part.added", sequence_number=2, part=PART, **PLACE),
    ],
    "/v1/messages": [
        typed("message_start", message=MESSAGE),
        typed("content_block_start", index=0, content_block={"type": "text", "text": ""}) + typed("ping"),
    ],
}
"""What streams begin with, before their content."""


def delta(text: str) -> str:
    """A piece of text of the Responses API."""
    return typed("response.output_text.delta", sequence_number=3, delta=text, logprobs=[], **PLACE)


CONTENTS = {
    "/v1/chat/completions": [chunk({"content": piece}) for piece in PIECES],
    "/v1/responses": [delta(PIECES[0]), delta(PIECES[1])],
    "/v1/messages": [
        typed("content_block_delta", index=0, delta={"type": "text_delta", "text": piece}) for piece in PIECES
    ],
}
ENDS = {
    "/v1/chat/completions": [chunk({}, "stop"), event("[DONE]")],
    "/v1/responses": [typed("response.completed", sequence_number=4, response=RESPONSE)],
    "/v1/messages": [
        typed("content_block_stop", index=0),
        typed("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 2}),
        typed("message_stop"),
    ],
}


def error_body(kind: str, code: str | None = None) -> dict:
    """The body of an error, which SDKs of both kinds understand."""
    return {"type": "error", "error": {"type": kind, "code": code, "message": f"there was {code or kind}"}}


def error_event(path: str, kind: str, code: str | None = None) -> str:
    """An error inside a stream, as each API sends it."""
    if path == "/v1/responses":
        return typed("error", sequence_number=2, code=code or kind, message="no", param=None)
    return event(error_body(kind, code), "error" if path == "/v1/messages" else None)


def fail(status: int, *headers: tuple[str, str], kind: str = "api_error", code: str | None = None) -> Behaviour:
    """Answer with a status and an error as JSON."""
    body = json.dumps(error_body(kind, code)).encode()
    return respond(status, ("Content-Type", "application/json"), *headers, body=body)


def stream(*events: str, then: Behaviour | None = None, headers: tuple[tuple[str, str], ...] = ()) -> Behaviour:
    """Answer with an event stream, each event in a piece of its own, and end it, or do something else `then`."""

    def behave(connection) -> bool:
        lines = ["HTTP/1.1 200 OK", "Content-Type: text/event-stream; charset=utf-8", "Transfer-Encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in headers]
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        for each in events:
            data = each if isinstance(each, bytes) else each.encode()
            connection.sendall(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        if then is not None:
            return then(connection)
        connection.sendall(b"0\r\n\r\n")
        return True

    return behave


def cut_off(*events: str) -> Behaviour:
    """Begin an event stream, and reset the connection."""
    return stream(*events, then=reset)


class LLMServer(Server):
    """The server; `bodies` are the JSON bodies that were sent to it."""

    def __init__(self, *behaviours: Behaviour) -> None:
        super().__init__(*behaviours)
        self._picking = threading.Lock()

    @property
    def bodies(self) -> list[dict]:
        return [json.loads(request.body) for request in self.requests]

    def pick(self, request: Request) -> Behaviour:
        with self._picking:
            if self.script:
                return self.script.popleft()
        path = request.path.partition("?")[0]
        if json.loads(request.body or b"{}").get("stream"):
            return stream(*BEGINNINGS[path], *CONTENTS[path], *ENDS[path])
        return respond(200, ("Content-Type", "application/json"), body=json.dumps(ANSWERS[path]).encode())
