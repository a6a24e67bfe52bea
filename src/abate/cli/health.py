"""Answers of a service on HTTP, for probes: is it alive, does it take work?

``GET /healthz`` and ``GET /readyz`` answer 200 or 503. They are served by the service's own event loop: if that hangs,
so do they, and this is what a probe has to see.

On loopback the answer says how the service is, as JSON, to requests for a loopback name. Elsewhere, where strangers can
ask, it says only whether the service is live and ready, to requests for an IP address, as kubelets and load balancers
make them, and for ``localhost``: a name could be a foreign web page's that points here (DNS rebinding).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from abate.http_server import Connection, HttpServer, is_address, is_loopback, listening, url

MOST = 32
"""Connections at once."""


class HealthServer:
    """Serves what `health()` answers, an object with `live` and `ready` among its fields."""

    def __init__(self, health: Callable[[], Any], host: str, port: int) -> None:
        self._health = health
        self._host = host
        self._port = port
        self._local = is_loopback(host)
        self._server = HttpServer(self._answer, hosts=is_loopback if self._local else is_address, connections=MOST)

    async def __aenter__(self) -> str:
        """Begin to serve, and return the address."""
        server = listening(self._host, self._port)
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
