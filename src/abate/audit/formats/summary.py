"""The sentences about an audit as a whole."""

from __future__ import annotations

from collections import Counter

from abate.audit.auditing import Audit
from abate.audit.findings import SEVERITIES


def counted(audit: Audit) -> str:
    """Return how much was audited, and how many findings there are."""
    counts = Counter(finding.severity for finding in audit.findings)
    listed = ", ".join(_plural(counts[severity], severity) for severity in reversed(SEVERITIES) if counts[severity])
    found = listed or "no findings"
    read = f"{_plural(audit.files, 'file')} with {audit.lines:,} lines and {_plural(audit.retries, 'retry', 'retries')}"
    return f"{read}: {found}"


def remarks(audit: Audit) -> list[str]:
    """Return what was left out."""
    said = []
    if audit.tests_left_out:
        said.append(f"{_plural(audit.tests_left_out, 'test file')} left out (--tests audits them too)")
    if audit.silenced:
        said.append(f"{_plural(audit.silenced, 'finding')} silenced by comments")
    if audit.known:
        said.append(f"{_plural(audit.known, 'finding')} in the baseline")
    if audit.gone:
        said.append(f"{_plural(audit.gone, 'finding')} of the baseline no longer there: write it anew")
    return said


def _plural(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"
