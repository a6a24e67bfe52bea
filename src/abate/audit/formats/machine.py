"""Formats for programs: JSON, SARIF, and GitHub's workflow commands."""

from __future__ import annotations

import json
import os
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from abate.audit.auditing import ALL_RULES, Audit
from abate.audit.findings import Finding
from abate.redact import escaped, redacted

LEVELS = {"note": "notice", "warning": "warning", "error": "error"}
DOCS = "docs/audit.md"


def as_json(audit: Audit) -> str:
    """Return a list of objects, one for each finding."""
    return json.dumps([_object(finding) for finding in audit.findings], indent=1)


def _object(finding: Finding) -> dict[str, Any]:
    spot, rule = finding.spot, finding.rule
    return {
        "rule": rule.id,
        "severity": finding.severity,
        "path": _printable(spot.path),
        "line": spot.line,
        "column": spot.column,
        "message": escaped(redacted(spot.message)),
        "outage": rule.outage,
        "fix": rule.fix(spot.library),
        "abate": rule.abate,
        "code": escaped(redacted(finding.code.strip())),
    }


def as_sarif(audit: Audit, version: str) -> str:
    """Return SARIF 2.1.0."""
    used = sorted({finding.rule.id for finding in audit.findings})
    rules = [one for one in ALL_RULES if one.id in used]
    index = {one.id: at for at, one in enumerate(rules)}
    driver = {
        "name": "abate audit",
        "version": version,
        "rules": [
            {
                "id": one.id,
                "shortDescription": {"text": one.title},
                "fullDescription": {"text": one.outage},
                "help": {"text": f"{one.fix('')}. With abate: {one.abate}"},
                "defaultConfiguration": {"level": one.severity},
            }
            for one in rules
        ],
    }
    results = [
        {
            "ruleId": finding.rule.id,
            "ruleIndex": index[finding.rule.id],
            "level": finding.severity,
            "message": {"text": _sentences(finding)},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": _uri(finding.spot.path)},
                        "region": {"startLine": finding.spot.line, "startColumn": finding.spot.column},
                    }
                }
            ],
        }
        for finding in audit.findings
    ]
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "utf16CodeUnits", "results": results}],
    }
    return json.dumps(log, indent=1)


def _uri(path: str) -> str:
    return PurePath(path).as_uri() if PurePath(path).is_absolute() else quote(os.fsencode(path))


def as_github(audit: Audit) -> str:
    """Return workflow commands, which GitHub shows beside the lines of a change."""
    return "\n".join(
        f"::{LEVELS[finding.severity]} file={_property(escaped(finding.spot.path))},line={finding.spot.line}"
        f",col={finding.spot.column},title={_property(finding.rule.id)}::"
        f"{_data(_sentences(finding))}"
        for finding in audit.findings
    )


def _sentences(finding: Finding) -> str:
    """Return what was found, what it does in an outage, and the fix, on one line."""
    message = escaped(redacted(finding.spot.message))
    return f"{message}. {finding.rule.outage} Fix: {finding.rule.fix(finding.spot.library)}."


def _printable(path: str) -> str:
    """Return a path whose bytes are not all UTF-8 as text that can be written."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
