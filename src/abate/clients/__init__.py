"""Clients: each public module adapts one library to abate's rules; the others are shared by several of them.

Nothing is imported before it is used: ``import abate.clients.httpx`` needs httpx, and so on.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abate.clients import (
        aiohttp,
        anthropic,
        asgi,
        aws_lambda,
        botocore,
        databases,
        grpc,
        grpc_server,
        httpx,
        httpx2,
        openai,
        redis,
        requests,
        sqlalchemy,
        sqs,
        sse,
        trust,
        urllib3,
        warm,
        wsgi,
    )

__all__ = [
    "aiohttp",
    "anthropic",
    "asgi",
    "aws_lambda",
    "botocore",
    "databases",
    "grpc",
    "grpc_server",
    "httpx",
    "httpx2",
    "openai",
    "redis",
    "requests",
    "sqlalchemy",
    "sqs",
    "sse",
    "trust",
    "urllib3",
    "warm",
    "wsgi",
]

if not TYPE_CHECKING:  # a type checker that sees `__getattr__` takes every name for Any

    def __getattr__(name: str) -> Any:
        """Import a client, and the library that it is for, on first use."""
        if name in __all__:
            return importlib.import_module(f"abate.clients.{name}")
        raise AttributeError(f"module 'abate.clients' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
