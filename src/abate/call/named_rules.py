"""Looks up the exception classes and rules that a configuration names, without running code.

* A built-in exception, or a name out of `abate` itself, needs no module: ``TimeoutError``, ``http.transient``.
* A module that the program has imported is used as it is.
* A module that it has not imported is imported only if it is installed (the standard library, site-packages). Files in
  the current directory, or elsewhere on Python's path, are not imported.
* A module that is a program is not imported: ``unittest.__main__`` runs the tests of the current directory.
* Modules listed as `code` by the program, or on the command line, may be imported from anywhere, and the functions in
  them may be named as predicates.

Any other callable is refused: ``on = "os:remove"`` would be called with every error.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from abate.decide.rules import Rule
from abate.redact import escaped

MAX_NAME = 200
"""The longest name, in characters."""
MAIN = "__main__"
PROGRAMS = frozenset({"antigravity", "idlelib", "test", "this", "turtledemo"})
"""Modules and packages of the standard library that run something when they are imported."""


def checked_code(code: Sequence[str]) -> tuple[str, ...]:
    """Return the checked modules of the program that a configuration may name.

    >>> checked_code(["shop.errors"])
    ('shop.errors',)
    >>> checked_code("shop")
    Traceback (most recent call last):
    TypeError: code must be a list of modules, such as ['shop.errors'], not 'shop'
    """
    if isinstance(code, (str, bytes)) or not isinstance(code, Sequence):
        raise TypeError(f"code must be a list of modules, such as ['shop.errors'], not {code!r}")
    for module in code:
        if not isinstance(module, str) or not _is_path(module):
            raise ValueError(f"code must be a list of modules, such as ['shop.errors'], not with {module!r}")
    return tuple(code)


def is_code(module: str, code: Sequence[str]) -> bool:
    """Return whether a module is listed, or inside a listed package.

    >>> is_code("shop.errors", ["shop"]), is_code("shopping", ["shop"])
    (True, False)
    """
    return any(f"{module}.".startswith(f"{listed}.") for listed in code)


def resolve(place: str, name: object, code: Sequence[str] = ()) -> Any:
    """Return the exception class or rule behind a name; errors show `place`, where the name was found.

    >>> resolve("app.toml: [orders] on", "json.decoder:JSONDecodeError").__name__
    'JSONDecodeError'
    >>> resolve("app.toml: [orders] on", "os:remove")
    Traceback (most recent call last):
    ValueError: app.toml: [orders] on names 'os:remove', which is neither an exception class nor a rule; ...
    """
    found, module = _find(place, name, "must hold names of exceptions or rules", code)
    if (isinstance(found, type) and issubclass(found, BaseException)) or isinstance(found, Rule):
        return found
    if is_code(module, code) and callable(found) and not isinstance(found, type):
        return found
    if not callable(found) or isinstance(found, type):
        raise ValueError(f"{place} names {name!r}, which is neither an exception class nor a rule")
    raise ValueError(
        f"{place} names {name!r}, which is neither an exception class nor a rule; a function is called by the policy "
        "only if the program allows its module, by code=['its.module'] or --code its.module"
    )


def resolve_function(place: str, name: object, code: Sequence[str] = ()) -> Any:
    """Return the function behind a name; its module must be allowed by `code`.

    >>> resolve_function("app.toml: [orders] before_retry", "os:remove")
    Traceback (most recent call last):
    ValueError: app.toml: [orders] before_retry names 'os:remove', whose module the program does not allow; ...
    """
    found, module = _find(place, name, "must be the name of a function", code)
    if not is_code(module, code):
        raise ValueError(
            f"{place} names {name!r}, whose module the program does not allow; a policy calls a function only if its"
            " module is allowed, by code=['its.module'] or --code its.module"
        )
    return found


def _find(place: str, name: object, expected: str, code: Sequence[str]) -> tuple[Any, str]:
    """Return the object behind a name, and the module that it was found in."""
    if not isinstance(name, str) or not name or len(name) > MAX_NAME:
        raise ValueError(f"{place} {expected}, not {name!r:.80}")
    try:
        return _found(name, code)
    except LookupError as error:
        raise ValueError(
            f"{place} names {name!r}, which cannot be found: {escaped(error.args[0])}"
        ) from error.__cause__


def _found(name: str, code: Sequence[str]) -> tuple[Any, str]:
    if name.isidentifier():
        if hasattr(builtins, name):
            return getattr(builtins, name), "builtins"
        return _attribute(importlib.import_module("abate"), [name]), "abate"
    module, colon, path = name.partition(":")
    if not _is_path(module) or (colon and not _is_path(path)):
        raise LookupError("expected a name such as TimeoutError, shop.errors:Busy or abate.http.transient")
    if colon:
        return _attribute(_import_allowed(module, code), path.split(".")), module
    words = name.split(".")
    found = _import_allowed(words[0], code)
    for count, word in enumerate(words[1:], start=1):
        within = ".".join(words[:count])
        if hasattr(found, word) or not hasattr(found, "__path__"):
            return _attribute(found, words[count:]), within
        found = _import_allowed(f"{within}.{word}", code)
    raise LookupError("it is a module")


def _attribute(found: Any, path: Sequence[str]) -> Any:
    """Follow a path through modules and classes only: attributes of anything else may run code."""
    for word in path:
        if not isinstance(found, (ModuleType, type)):
            raise LookupError(f"{word!r} would be an attribute of {found!r:.80}")
        try:
            found = getattr(found, word)
        except AttributeError as error:
            raise LookupError(str(error)) from None
        except Exception as error:  # a module that makes its names when they are asked for
            raise LookupError(f"{type(error).__name__}: {error}") from error
    return found


def _import_allowed(name: str, code: Sequence[str]) -> ModuleType:
    known = sys.modules.get(name)
    if known is not None:
        return known
    top = name.partition(".")[0]
    above = any(listed.startswith(f"{name}.") for listed in code)
    if not above and not is_code(name, code) and not is_installed(top):
        raise LookupError(
            f"the module {name!r} is neither imported nor installed; to import it, allow it by code=[{name!r}], or "
            f"--code {name}"
        )
    if not is_code(name, code) and (top in PROGRAMS or MAIN in name.split(".")):
        raise LookupError(f"the module {name!r} is a program, which importing it would run")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        cause = None if f"{name}.".startswith(f"{error.name}.") else error
        raise LookupError(str(error)) from cause
    except (Exception, SystemExit) as error:  # whatever an import may raise: a program ends by SystemExit
        raise LookupError(f"{type(error).__name__}: {error}") from error


def is_installed(top: str) -> bool:
    """Return whether a package or module is part of the standard library or installed.

    False if a file elsewhere on the path, such as in the current directory, would be imported instead.

    >>> is_installed("json"), is_installed("no_such_module")
    (True, False)
    """
    import site
    import sysconfig
    from importlib.util import find_spec
    from pathlib import Path

    if top == "abate" or top in sys.builtin_module_names:
        return True
    known = sys.modules.get(top)
    try:
        spec = known.__spec__ if known is not None else find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return False
    if spec is None:
        return False
    if spec.origin == "frozen":
        return True
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    places = [Path(folder).resolve() for folder in folders]
    found = list(spec.submodule_search_locations or ()) or ([spec.origin] if spec.origin else [])
    return bool(found) and all(any(Path(file).resolve().is_relative_to(place) for place in places) for file in found)


def _is_path(text: str) -> bool:
    return all(word.isidentifier() for word in text.split("."))
