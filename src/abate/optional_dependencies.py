"""The error for a missing optional library: it names the extra to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

DISTRIBUTIONS = {
    "google": "protobuf",
    "google.protobuf": "protobuf",
    "google.rpc": "googleapis-common-protos",
    "grpc": "grpcio",
}
"""The names to install, by the names to import, where they differ. The longest match counts."""


@contextmanager
def requires_extra(by: str, extra: str) -> Iterator[None]:
    """Wrap the imports of an optional library: if it is missing, the error names the extra of abate to install.

    >>> with requires_extra(by="abate.observe.PrometheusSink", extra="prometheus"):
    ...     import no_such_library
    Traceback (most recent call last):
    ModuleNotFoundError: abate.observe.PrometheusSink needs no_such_library: install abate[prometheus]
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = _distribution(str(error.name))
        raise ModuleNotFoundError(
            f"{by} needs {library}: install abate[{extra}]", name=error.name, path=error.path
        ) from error


def _distribution(module: str) -> str:
    """Return the name by which the library of a module is installed.

    >>> _distribution("grpc.aio"), _distribution("google.rpc.status_pb2"), _distribution("redis.asyncio")
    ('grpcio', 'googleapis-common-protos', 'redis')
    """
    parts = module.split(".")
    prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((DISTRIBUTIONS[prefix] for prefix in prefixes if prefix in DISTRIBUTIONS), parts[0])
