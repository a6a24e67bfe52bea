"""A review in Markdown: what is right, findings by severity, a table of what is to be done."""

from __future__ import annotations

from collections import Counter

from abate.audit.auditing import RULES_BY_ID, Audit
from abate.audit.findings import SEVERITIES, Finding
from abate.audit.formats.summary import counted, remarks
from abate.redact import escaped, redacted

HEADINGS = {"error": "Errors: these hurt in any outage", "warning": "Warnings", "note": "Notes: these hurt at scale"}


def as_markdown(audit: Audit) -> str:
    """Return the review."""
    parts = ["# Retries: a review", counted(audit) + ".", *(f"{text}." for text in remarks(audit))]
    if audit.sound:
        parts += ["## What is right", "\n".join(f"* {text[0].upper()}{text[1:]}." for text in audit.sound)]
    for severity in reversed(SEVERITIES):
        chosen = [finding for finding in audit.findings if finding.severity == severity]
        if chosen:
            parts += [f"## {HEADINGS[severity]}", *_by_rule(chosen)]
    if audit.findings:
        parts += ["## What to do", _backlog(audit.findings)]
    return "\n\n".join(parts)


def _by_rule(findings: list[Finding]) -> list[str]:
    parts = []
    for rule_id, _ in Counter(finding.rule.id for finding in findings).most_common():
        chosen = [finding for finding in findings if finding.rule.id == rule_id]
        rule = chosen[0].rule
        parts += [f"### {rule.id}: {rule.title}", rule.outage]
        parts.append("\n".join(f"* `{_inline(f.spot.path)}:{f.spot.line}`: {_text(f.spot.message)}" for f in chosen))
        fixes = dict.fromkeys(finding.rule.fix(finding.spot.library) for finding in chosen)
        parts += [f"Fix: {_text(fix)}." for fix in fixes]
        parts.append(f"With abate: {_text(rule.abate)}.")
    return parts


def _backlog(findings: tuple[Finding, ...]) -> str:
    counts = Counter((finding.rule.id, finding.severity) for finding in findings)
    files: dict[str, set[str]] = {}
    for finding in findings:
        files.setdefault(finding.rule.id, set()).add(finding.spot.path)
    rows = sorted(counts.items(), key=lambda item: (-SEVERITIES.index(item[0][1]), -item[1], item[0][0]))
    lines = ["| | rule | severity | findings | files | what to do |", "|---|---|---|---:|---:|---|"]
    for number, ((rule_id, severity), count) in enumerate(rows, 1):
        fix = _text(RULES_BY_ID[rule_id].fix("")).replace("|", "\\|")
        lines.append(f"| {number} | {rule_id} | {severity} | {count} | {len(files[rule_id])} | {fix} |")
    return "\n".join(lines)


def _inline(text: str) -> str:
    return escaped(text).replace("`", "'")


def _text(text: str) -> str:
    """Return text without the characters that Markdown or HTML would read."""
    safe = escaped(redacted(text))
    for character in "\\`*_[]<":
        safe = safe.replace(character, f"\\{character}" if character != "<" else "&lt;")
    return safe
