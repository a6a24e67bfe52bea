"""Small values: what `dataclasses` makes, without its import time (it brings `inspect`, and compiles each class)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self, dataclass_transform

if TYPE_CHECKING:
    from inspect import Signature


class Fields:
    """Compares and shows an object by the fields named in ``__match_args__``."""

    __slots__ = ()
    __match_args__: tuple[str, ...] = ()

    def _values(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self.__match_args__])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fields) or type(self) is not type(other):
            return NotImplemented
        return self._values() == other._values()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
        return f"{type(self).__name__}({shown})"


def _annotations(kind: type) -> dict[str, Any]:
    """Those of a class itself, not evaluated: they may name what is imported for type checkers alone."""
    if sys.version_info >= (3, 14) and kind.__dict__.get("__annotate_func__") is not None:
        from annotationlib import Format, get_annotations  # of a module that does not import them from __future__

        return get_annotations(kind, format=Format.FORWARDREF)
    found: dict[str, Any] = kind.__dict__.get("__annotations__", {})  # noqa: RUF063  (inspect is what is to be spared)
    return found


class _Signature:
    """What `inspect.signature` asks a class for, made when it does: `inspect` is what is to be spared."""

    def __get__(self, value: object, kind: type[Value]) -> Signature:
        from inspect import Parameter, Signature

        if value is not None or kind.__init__ is not Value.__init__:
            raise AttributeError("__signature__")
        types: dict[str, Any] = {}
        for base in reversed(kind.__mro__):
            types.update(_annotations(base))
        return Signature(
            [
                Parameter(
                    name,
                    Parameter.POSITIONAL_OR_KEYWORD,
                    default=getattr(kind, name, Parameter.empty),
                    annotation=types.get(name, Parameter.empty),
                )
                for name in kind.__match_args__
            ]
        )


@dataclass_transform(frozen_default=True)
class Value(Fields):
    """A frozen value. Its annotations are its fields, in order; a value given to one in the class is its default.

    `checked` is called at construction, for subclasses that have something to refuse.

    >>> class Point(Value):
    ...     x: float
    ...     y: float = 0.0
    >>> Point(1.0), Point(1.0) == Point(x=1.0, y=0.0)
    (Point(x=1.0, y=0.0), True)
    """

    __signature__ = _Signature()

    def __init_subclass__(cls) -> None:
        cls.__match_args__ = (*cls.__match_args__, *_annotations(cls))  # type: ignore[misc]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = self.__match_args__
        values = dict(zip(names, args, strict=False))
        if len(args) > len(names) or not values.keys().isdisjoint(kwargs):
            raise TypeError(f"{type(self).__name__} takes {', '.join(names)}, each once, not {args!r} and {kwargs!r}")
        values.update(kwargs)
        for name in values:
            if name not in names:
                raise TypeError(f"{type(self).__name__} has no {name!r}; it has {', '.join(names)}")
        for name in names:
            if name not in values:
                if not hasattr(type(self), name):
                    raise TypeError(f"{type(self).__name__} needs a value for {name!r}")
                values[name] = getattr(type(self), name)  # read faster from here than from the class
        self.__dict__.update(values)
        self.checked()

    def checked(self) -> None:
        """Refuse what cannot be: raise an error that names the value and what was expected."""

    def __hash__(self) -> int:
        return hash(self._values())

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} is frozen: {name!r} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} is frozen: {name!r} cannot be deleted")


class Shared:
    """An object that counts, learns or holds calls back: a copy of it would be a second one.

    Within a process, a copy is the object itself. In a pickle are its settings: what is made from them, in whatever
    process, begins anew.
    """

    __slots__ = ()

    def _made_from(self) -> dict[str, Any]:
        """The arguments that make another one like this."""
        raise TypeError(f"{self!r} cannot be pickled: it is shared by those who work with it here")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _made, (type(self), self._made_from())


def _made(kind: type[Any], settings: dict[str, Any]) -> Any:
    return kind(**settings)


def clockless(thing: object, has_clock: bool) -> None:
    """Refuse to pickle what has a clock of its own: elsewhere that clock would stand still, or be another one."""
    if has_clock:
        raise TypeError(f"{thing!r} cannot be pickled: it has a clock of its own")
