"""Findings for people at a terminal: the code, what happens in an outage, and what to do."""

from __future__ import annotations

from abate.audit.auditing import Audit
from abate.audit.findings import Finding
from abate.audit.formats.summary import counted, remarks
from abate.redact import escaped, redacted

COLORS = {"error": "31", "warning": "33", "note": "36"}
MAX_CODE = 160


def as_text(audit: Audit, color: bool = False) -> str:
    """Return all findings, and the counts at the end."""
    explained: set[tuple[str, str]] = set()
    parts = []
    for finding in audit.findings:
        key = (finding.rule.id, finding.rule.fix(finding.spot.library))
        parts.append(_finding(finding, color, key not in explained))
        explained.add(key)
    parts.append("\n".join([counted(audit), *remarks(audit)]))
    return "\n\n".join(parts)


def _finding(finding: Finding, color: bool, explain: bool) -> str:
    spot, rule = finding.spot, finding.rule
    label = _colored(finding.severity, COLORS[finding.severity], color)
    lines = [f"{escaped(spot.path)}:{spot.line}:{spot.column}: {label} {_colored(rule.id, '1', color)}"]
    code = escaped(redacted(finding.code.strip().expandtabs(4)))[:MAX_CODE]
    if code:
        lines.append(f"    {spot.line:>5} | {code}")
    lines.append(f"  {escaped(redacted(spot.message))}")
    if explain:  # once for each rule and fix: the text is the same for all
        lines.append(f"  outage: {rule.outage}")
        lines.append(f"  fix:    {rule.fix(spot.library)}")
        lines.append(f"  abate:  {rule.abate}")
    return "\n".join(lines)


def _colored(text: str, code: str, color: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if color else text
