"""Settings of an audit: ``[tool.abate.audit]`` in ``pyproject.toml``."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from abate.audit.findings import SEVERITIES
from abate.errors import AbateError
from abate.frozen import Frozen

NEVER = "never"
FAIL_ON = (*SEVERITIES, NEVER)


class Settings(Frozen):
    """What an audit looks at, and what counts."""

    exclude: tuple[str, ...] = ()
    """Globs of files and folders, relative to the audited path."""
    tests: bool = False
    """Whether tests are audited as well."""
    ignore: tuple[str, ...] = ()
    """Rules that are switched off."""
    severity: Mapping[str, str] = {}
    """Rules whose severity is changed."""
    fail_on: str = "warning"
    """The least severity for which the command fails."""
    baseline: str = ""
    """The file with the findings of old code."""
    comments: bool = True
    """Whether comments in the audited code silence findings; not to be set in a file."""

    def validate(self) -> None:
        if self.fail_on not in FAIL_ON:
            raise AbateError(f"fail_on is {self.fail_on!r}: expected one of {', '.join(FAIL_ON)}")
        for rule, severity in self.severity.items():
            if severity not in SEVERITIES:
                raise AbateError(f"severity of {rule} is {severity!r}: expected one of {', '.join(SEVERITIES)}")

    def check_rules(self, known: list[str]) -> None:
        """Raise an error for a rule that does not exist."""
        for name in (*self.ignore, *self.severity):
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                meant = f"; did you mean {close[0]}?" if close else f"; rules are {', '.join(known)}"
                raise AbateError(f"there is no rule {name!r}{meant}")


TYPES: dict[str, tuple[type, str]] = {
    "exclude": (list, "a list of globs"),
    "tests": (bool, "true or false"),
    "ignore": (list, "a list of rules"),
    "severity": (dict, "a table of rules and severities"),
    "fail_on": (str, f"one of {', '.join(FAIL_ON)}"),
    "baseline": (str, "the name of a file"),
}


def find_settings(path: Path) -> tuple[Settings, Path | None]:
    """Return the settings of the nearest ``pyproject.toml`` at or above a path that has any, and its folder."""
    here = path.absolute()
    for folder in [here, *here.parents] if here.is_dir() else here.parents:
        file = folder / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            content = tomllib.loads(file.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
            raise AbateError(f"{file} can't be read: {error}") from error
        found: Any = content
        for name in ("tool", "abate", "audit"):
            found = found.get(name) if isinstance(found, dict) else None
        if found is not None:
            return _settings(found, file), folder
        return Settings(), None
    return Settings(), None


def _settings(found: Any, file: Path) -> Settings:
    if not isinstance(found, dict):
        raise AbateError(f"tool.abate.audit in {file} is {found!r}: expected a table")
    for name, value in found.items():
        if name not in TYPES:
            close = difflib.get_close_matches(name, TYPES, 1)
            meant = f"; did you mean {close[0]}?" if close else f"; it has {', '.join(TYPES)}"
            raise AbateError(f"tool.abate.audit in {file} has no setting {name!r}{meant}")
        kind, expected = TYPES[name]
        if not isinstance(value, kind) or (
            isinstance(value, list) and not all(isinstance(item, str) for item in value)
        ):
            raise AbateError(f"{name} in {file} is {value!r}: expected {expected}")
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
    return Settings(**given)
