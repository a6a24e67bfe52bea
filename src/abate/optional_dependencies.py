"""The error for a missing optional library: it names the extra to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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
        library = str(error.name).partition(".")[0]
        raise ModuleNotFoundError(
            f"{by} needs {library}: install abate[{extra}]", name=error.name, path=error.path
        ) from error
