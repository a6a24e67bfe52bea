"""Comments that silence findings: ``# abate: ignore[rule]``, behind the code or alone on the line above it."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Collection

from abate.audit.source_files import SourceFile

COMMENT = re.compile(r"#\s*abate:\s*ignore(?:\[([^\]]*)\])?")
ALL = "*"


class Ignores:
    """The comments of one file."""

    def __init__(self, source: SourceFile) -> None:
        self._rules: dict[int, set[str]] = {}
        """The silenced rules by line."""
        self.written: list[tuple[int, str]] = []
        """Each comment's line and rule."""
        self._used: set[tuple[int, str]] = set()
        if any("abate:" in line for line in source.lines):
            self._read(source)

    def _read(self, source: SourceFile) -> None:
        text = "\n".join(source.lines) + "\n"
        try:
            tokens = [
                token
                for token in tokenize.generate_tokens(io.StringIO(text).readline)
                if token.type == tokenize.COMMENT
            ]
        except (tokenize.TokenError, SyntaxError):
            return
        for token in tokens:
            found = COMMENT.search(token.string)
            if found is None:
                continue
            line = token.start[0]
            rules = {ALL} if found[1] is None else {name.strip() for name in found[1].split(",") if name.strip()}
            self.written += [(line, rule) for rule in sorted(rules)]
            self._rules.setdefault(line, set()).update(rules)

    def silences(self, source: SourceFile, rule: str, first: int, last: int) -> bool:
        """Return whether a comment silences a rule on these lines."""
        lines = list(range(first, last + 1))
        above = first - 1
        while above in self._rules and source.lines[above - 1].lstrip().startswith("#"):
            lines.append(above)
            above -= 1
        for line in lines:
            for name in (rule, ALL):
                if name in self._rules.get(line, ()):
                    self._used.add((line, name))
                    return True
        return False

    def unknown(self, rules: Collection[str]) -> list[tuple[int, str]]:
        """Return the comments that name no rule."""
        return [(line, rule) for line, rule in self.written if rule != ALL and rule not in rules]

    def unused(self) -> list[tuple[int, str]]:
        """Return the comments that silenced nothing."""
        return [comment for comment in self.written if comment not in self._used]
