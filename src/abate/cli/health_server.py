"""Health probes over HTTP: ``GET /healthz`` (alive) and ``GET /readyz`` (takes work) answer 200 or 503.

They are served by the service's own event loop: if it hangs, the probes time out, as they should.

On loopback the body is the whole health as JSON, and the Host header must be a loopback name. On other addresses the
body has `live` and `ready` only, and the Host must be an IP address (as kubelets and load balancers send) or
``localhost``: a name may belong to a web page that points here (DNS rebinding).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from abate.http_server import Connection, HttpServer, is_address, is_loopback, listen, url

MAX_CONNECTIONS = 32
"""At once."""


class HealthServer:
    """Serves the result of `health()`, a value with the fields `live` and `ready`."""

    def __init__(self, health: Callable[[], Any], host: str, port: int) -> None:
        self._health = health
        self._host = host
        self._port = port
        self._local = is_loopback(host)
        self._server = HttpServer(
            self._answer, allows_host=is_loopback if self._local else is_address, max_connections=MAX_CONNECTIONS
        )

    async def __aenter__(self) -> str:
        """Start, and return the address."""
        server = listen(self._host, self._port)
        await self._server.start(server)
        return url(self._host, server)

    async def __aexit__(self, *exit: object) -> None:
        await self._server.close(0.0)

    async def _answer(self, connection: Connection) -> None:
        health, request = self._health(), connection.request
        known = {"/healthz": health.live, "/readyz": health.ready}
        if request.path not in known:
            status = HTTPStatus.NOT_FOUND
        elif request.method not in ("GET", "HEAD"):
            status = HTTPStatus.METHOD_NOT_ALLOWED
        else:
            status = HTTPStatus.OK if known[request.path] else HTTPStatus.SERVICE_UNAVAILABLE
        shown = health.__match_args__ if self._local else ("live", "ready")
        body = json.dumps({name: getattr(health, name) for name in shown}).encode()
        await connection.send(status, "application/json", body)
