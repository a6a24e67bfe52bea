"""The baseline: findings of old code that are known and don't count.

A finding is recognized by its file, its rule and its line of code, not by the number of the line: code may move.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from abate.audit.findings import Finding
from abate.errors import AbateError

VERSION = 1
MAX_BYTES = 50_000_000


def _key(finding: Finding, folder: Path) -> tuple[str, str, str]:
    path = Path(finding.spot.path).absolute()
    shown = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_posix()
    return shown, finding.rule.id, finding.code.strip()


class Baseline:
    """The findings in a baseline file, with how many there are of each."""

    def __init__(self, file: Path) -> None:
        self._folder = file.absolute().parent
        self.known: Counter[tuple[str, str, str]] = Counter()
        try:
            if file.exists() and not file.is_file():
                raise AbateError(f"the baseline {file} is not a regular file")
            if file.stat().st_size > MAX_BYTES:
                raise AbateError(f"the baseline {file} has more than {MAX_BYTES:,} bytes")
            content = json.loads(file.read_text("utf-8"))
            if content["version"] != VERSION:
                raise AbateError(f"the baseline {file} has version {content['version']!r}: expected {VERSION}")
            for entry in content["findings"]:
                self.known[entry["path"], entry["rule"], entry["code"]] += entry.get("count", 1)
        except OSError as error:
            raise AbateError(f"the baseline {file} can't be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise AbateError(f"the baseline {file} is none: make it with --write-baseline") from error

    def new(self, findings: Iterable[Finding]) -> tuple[list[Finding], int, int]:
        """Return the findings that are not in the baseline, how many are, and how many of its own no longer occur."""
        left = self.known.copy()
        new: list[Finding] = []
        known = 0
        for finding in findings:
            key = _key(finding, self._folder)
            if left[key] > 0:
                left[key] -= 1
                known += 1
            else:
                new.append(finding)
        return new, known, left.total()


def write_baseline(file: Path, findings: Iterable[Finding]) -> int:
    """Write a baseline file of findings, and return how many."""
    counts = Counter(_key(finding, file.absolute().parent) for finding in findings)
    entries = [
        {"path": path, "rule": rule, "code": code, "count": count}
        for (path, rule, code), count in sorted(counts.items())
    ]
    text = json.dumps({"version": VERSION, "findings": entries}, indent=1, ensure_ascii=False)
    try:
        file.write_text(text + "\n", "utf-8")
    except OSError as error:
        raise AbateError(f"the baseline {file} can't be written: {error.strerror}") from error
    return counts.total()
