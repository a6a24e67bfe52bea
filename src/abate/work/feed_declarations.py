"""Makes feeds of what `Controller.source` and `Controller.poll` are given, and checks it."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Collection
from functools import partial
from inspect import isasyncgen, iscoroutinefunction
from itertools import count
from typing import Any

from abate.redact import short_repr
from abate.work.feeds import Feed, KeysOf, poll_feed, watch_feed


def watching(source: Any, keys: KeysOf | None, taken: Collection[Feed]) -> Feed:
    """Return a feed that adds each item of an async iterable, or of an async generator function."""
    if iscoroutinefunction(source) or not (callable(source) or isinstance(source, AsyncIterable)):
        raise TypeError(f"a source must be an async generator function or an async iterable, not {short_repr(source)}")
    produce = partial(watch_feed, source, _checked(keys))
    return Feed(_unique_name(source, taken), produce, restartable=not isasyncgen(source))


def polling(look: Callable[[], Any], seconds: float, keys: KeysOf | None, taken: Collection[Feed]) -> Feed:
    """Return a feed that calls a function every `seconds`."""
    if not callable(look):
        raise TypeError(f"a poller must be a function that returns keys, not {short_repr(look)}")
    return Feed(_unique_name(look, taken), partial(poll_feed, look, seconds, _checked(keys)))


def _checked(keys: KeysOf | None) -> KeysOf | None:
    if keys is not None and (not callable(keys) or iscoroutinefunction(keys)):
        raise TypeError(f"keys must be a plain function from an event to its keys, not {short_repr(keys)}")
    return keys


def _unique_name(function: object, taken: Collection[Feed]) -> str:
    """Return a name for a feed that no other feed of its controller has."""
    name = getattr(function, "__name__", type(function).__name__)
    names = {feed.name for feed in taken}
    return name if name not in names else next(f"{name}-{n}" for n in count(2) if f"{name}-{n}" not in names)
