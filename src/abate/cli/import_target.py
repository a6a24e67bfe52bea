"""Imports what an argument such as ``app:reconcile`` names."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from abate.errors import AbateError
from abate.redact import trace


def import_target(target: str) -> Any:
    """Return the object that a target names, or the module; modules of the current directory come first.

    The traceback of an error in the module is printed.

    >>> import_target("abate.errors:AbateError").__name__
    'AbateError'
    >>> import_target("abate.errors:Nothing")
    Traceback (most recent call last):
    abate.errors.AbateError: abate.errors has no 'Nothing'
    """
    module, colon, path = target.partition(":")
    words = module.split(".") + (path.split(".") if colon else [])
    if not all(word.isidentifier() for word in words):
        raise AbateError(f"expected a module and a name in it, such as app:reconcile, not {target!r}")
    if sys.path[0] != os.getcwd():
        sys.path.insert(0, os.getcwd())
    try:
        thing: Any = importlib.import_module(module)
    except Exception as error:
        # another name is that of a module it imports
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            raise AbateError(f"there is no module {error.name!r} in {os.getcwd()} or on Python's path") from None
        print(trace(error), file=sys.stderr)
        raise AbateError(f"{target} can't be imported") from error
    for name in path.split(".") if path else ():
        try:
            thing = getattr(thing, name)
        except AttributeError:
            raise AbateError(f"{module} has no {path!r}") from None
    return thing
