"""Frozen values like those of `dataclasses`, without its import time (it imports `inspect` and compiles)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, dataclass_transform

if TYPE_CHECKING:
    from inspect import Signature


class ComparedByFields:
    """Equality and repr by the fields in ``__match_args__``."""

    __slots__ = ()
    __match_args__: tuple[str, ...] = ()

    def _values(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self.__match_args__])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ComparedByFields) or type(self) is not type(other):
            return NotImplemented
        return self._values() == other._values()

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
        return f"{type(self).__name__}({shown})"


def _annotations(kind: type) -> dict[str, Any]:
    """Return the annotations of the class itself, not evaluated: they may name what only type checkers import."""
    if sys.version_info >= (3, 14) and kind.__dict__.get("__annotate_func__") is not None:
        from annotationlib import Format, get_annotations  # of a module that does not import them from __future__

        return get_annotations(kind, format=Format.FORWARDREF)
    found: dict[str, Any] = kind.__dict__.get("__annotations__", {})  # noqa: RUF063  (don't import inspect)
    return found


class _Signature:
    """Builds ``__signature__`` when `inspect.signature` asks for it, so that `inspect` is not imported before."""

    def __get__(self, value: object, kind: type[Frozen]) -> Signature:
        from inspect import Parameter, Signature

        if value is not None or kind.__init__ is not Frozen.__init__:
            raise AttributeError("__signature__")
        types: dict[str, Any] = {}
        for base in reversed(kind.__mro__):
            types.update(_annotations(base))
        return Signature(
            [
                Parameter(
                    name,
                    Parameter.POSITIONAL_OR_KEYWORD,
                    default=kind.field_defaults.get(name, Parameter.empty),
                    annotation=types.get(name, Parameter.empty),
                )
                for name in kind.__match_args__
            ]
        )


@dataclass_transform(frozen_default=True)
class Frozen(ComparedByFields):
    """A frozen value. Its annotations are its fields, in order; what the class assigns to them are their defaults.

    The class does not keep the defaults as attributes: CPython reads an attribute of an instance much faster if its
    class has none of that name.

    `validate` is called at construction; subclasses override it to check their values.

    >>> class Point(Frozen):
    ...     x: float
    ...     y: float = 0.0
    >>> Point(1.0), Point(1.0) == Point(x=1.0, y=0.0)
    (Point(x=1.0, y=0.0), True)
    """

    __signature__ = _Signature()
    field_defaults: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        inherited = cls.__match_args__
        fields = (*inherited, *(name for name in _annotations(cls) if name not in inherited))
        cls.__match_args__ = fields  # type: ignore[misc]
        own = {name: value for name, value in vars(cls).items() if name in fields and not isinstance(value, property)}
        cls.field_defaults = {**cls.field_defaults, **own}
        for name in own:
            delattr(cls, name)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = self.__match_args__
        values = dict(zip(names, args, strict=False))
        if len(args) > len(names) or not values.keys().isdisjoint(kwargs):
            raise TypeError(f"{type(self).__name__} takes {', '.join(names)}, each once, not {args!r} and {kwargs!r}")
        values.update(kwargs)
        for name in values:
            if name not in names:
                raise TypeError(f"{type(self).__name__} has no {name!r}; it has {', '.join(names)}")
        values = {**self.field_defaults, **values}
        for name in names:
            if name not in values:
                raise TypeError(f"{type(self).__name__} needs a value for {name!r}")
        self.__dict__.update(values)
        self.validate()

    def validate(self) -> None:
        """Raise an error that names an invalid value and what was expected."""

    def __hash__(self) -> int:
        return hash(self._values())

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} is frozen: {name!r} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} is frozen: {name!r} cannot be deleted")


class Shared:
    """An object with state that must not be duplicated by a copy: it counts, learns or holds calls back.

    Within a process, a copy is the object itself. A pickle holds its settings: an object made from it starts with fresh
    state.
    """

    __slots__ = ()

    def _pickled_settings(self) -> dict[str, Any]:
        """Return the arguments that create a similar object."""
        raise TypeError(f"{self!r} cannot be pickled: its state belongs to this process")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _made, (type(self), self._pickled_settings())


def _made(kind: type[Any], settings: dict[str, Any]) -> Any:
    return kind(**settings)


def refuse_own_clock(thing: object, has_clock: bool) -> None:
    """Refuse to pickle an object with its own clock, which would not run in another process."""
    if has_clock:
        raise TypeError(f"{thing!r} cannot be pickled: it has a clock of its own")
