r"""Makes text safe to write: hides secrets, escapes control characters, and limits the length.

Error texts, keys and names come from peers, and error texts repeat URLs and connection strings. All text that abate
writes passes through here: log lines, events as text, the page, metric labels, dead letters and command output.
Exception objects are never changed.

The following is replaced by ``***``:

* the user info of a URL, and everything after its ``?``; a fragment that has a ``=`` or a ``?``;
* the query of a path without a host (``/search?key=value``), if it has a ``=``;
* the value of a name that ends in one of `NAMES`, as ``name=value``, ``name: "value"``, ``"name": "value"``,
  ``"name": 5`` or ``("name", "value")``, with quotes of either kind, and as ``'--name', 'value'`` in a command line;
* all values after ``cookie=``, and tuples, lists and dicts after ``auth``, ``cookies`` and ``credentials``;
* the value of a header of `HEADERS`, as ``Name: value``, to the end of its line;
* the word after ``Bearer`` or ``Basic``, if it looks like a token; AWS access key IDs.

All other text is kept: a secret in the path of a URL, or one without a name, is not recognised.
"""

from __future__ import annotations

import re
from threading import get_ident
from typing import NamedTuple

HIDDEN = "***"
NAMES = (
    r"password|passwd|passphrase|(?<![a-z])pass|pwd|secret|token|credentials?|signature|authorization|cookie"
    r"|(?:api|access|secret|private|account|shared|signing|encryption)[_-]?key"
)
"""A value is hidden if its name ends in one of these."""
HEADERS = (
    r"(?:proxy-)?authorization|(?:set-)?cookie|(?:[a-z0-9]{1,32}-){1,4}(?:token|secret|password|(?:api|access)-?key)"
)
SCHEMES = r"(?:basic|bearer|digest|negotiate|token)[ \t]{1,3}"
"""The schemes that precede the secret in an ``Authorization`` value."""
MAX_LINE = 500
"""The default maximum length of a line, in characters."""
MAX_CAUSES, MAX_PARTS = 100, 1000
"""The maximum depth of causes, contexts and groups that a traceback includes, and the maximum number of errors."""
MAX_SCANNED = 65_536
"""Characters of a text that are scanned, which limits the time for a huge error text."""
MAX_TRACE = 4 * MAX_SCANNED
"""Characters of a traceback that are scanned and shown."""
MAX_USER_INFO_GAP = 256
"""Characters after a word in which to search for the end of its user info."""
MAX_URL = 2048
"""Characters before a ``?`` in which to search for the beginning of its URL."""
SCHEMES_WITH_AT = ("http", "https", "ws", "wss", "ftp", "file", "sqlite", "s3", "gs")
"""Schemes of URLs whose paths may contain an @. In those of others, an @ ends the user info, wherever it is."""
CLOSING = ")]}'`,.;:!"
"""Characters that may follow a URL or a value without being part of it."""


class _Patterns(NamedTuple):
    scheme: re.Pattern[str]
    authority: re.Pattern[str]
    word: re.Pattern[str]
    host: re.Pattern[str]
    line_end: re.Pattern[str]
    query: re.Pattern[str]
    value: re.Pattern[str]
    pair: re.Pattern[str]
    cookies: re.Pattern[str]
    group: re.Pattern[str]
    header: re.Pattern[str]
    token: re.Pattern[str]
    key: re.Pattern[str]


_compiled: list[_Patterns] = []
_compiling: set[int] = set()
"""The threads that are compiling the patterns."""


def _compile() -> bool:
    """Compile the patterns at the first use, as this takes longer than importing the core.

    Return False in a signal handler that has interrupted the compilation: if each handler started it again, frequent
    signals would keep it from ever finishing.
    """
    me = get_ident()
    if me in _compiling:
        return False
    try:
        _compiling.add(me)
        _compiled.append(_patterns())
    finally:
        _compiling.discard(me)
    return True


def _patterns() -> _Patterns:
    """Return the patterns. None of them backtracks over more than a bounded number of characters."""
    # a doubled quote is part of the value, as in SQL and ODBC
    single, double = (rf"(?:{quote}(?:[^{quote}\\]|\\.)*+(?:{quote}|\\?\Z))++" for quote in ("'", '"'))
    quoted = rf"[bu]?\\{{0,8}}(?:{single}|{double})"
    gap = r"(?:\s|\\{1,8}[nrt]){0,16}"  # in JSON, or in its `repr`
    begins = r"[bu]?\\{0,8}[\"']"
    plain = rf"{single}|{double}|[^'\"()\[\]{{}}\r\n]"
    group = rf"[(\[{{](?:{plain}|[(\[{{](?:{plain})*+[)\]}}]?)*+[)\]}}]?"  # of groups too
    return _Patterns(
        scheme=re.compile(r":(?://|\\/\\/)"),  # some JSON encoders write \/
        authority=re.compile(r'[^\s"<>/?#]*'),
        word=re.compile(r'[^\s"<>]*'),
        host=re.compile(r"(?:\[[^\]@]*\]|[^:@\[\]]*)(?::\d*)?"),
        line_end=re.compile(r"([^']*)'\\{1,8}[nrt]"),  # behind a quoted URL, in a `repr`
        query=re.compile(r'[?#]([^\s"<>]+)'),
        value=re.compile(
            rf"(?is)({NAMES})"
            rf"([ \t]{{0,8}}=(?!=)>?[ \t]{{0,8}}|(?<! token)[ \t]{{0,3}}:[ \t]{{0,3}}(?={begins})"
            rf"|\\{{0,8}}[\"']{gap}(?::|=>){gap}(?={begins}|[0-9]))"
            rf"({quoted}|\{{[^{{}}\r\n]{{0,256}}\}}\S*|{SCHEMES}\S+|\S+)"
        ),
        pair=re.compile(
            rf"(?is)((?:[(\[]{begins}[\w.-]{{0,64}}?|[\"']--?[\w-]{{0,64}}?)(?:{NAMES})\\{{0,8}}[\"'],\s{{0,3}})"
            rf"({quoted})"
        ),
        cookies=re.compile(
            r"(?i)(cookies?[ \t]{0,8}=[ \t]{0,8}|<(?:cookie|morsel:) )"
            r"([^\s;<'\"{(\[]+(?:;[ \t]{0,3}[\w.-]{1,64}=[^\s;]*)*+)"
        ),
        group=re.compile(rf"(?is)((?:auth|cookies|credentials)\\{{0,8}}[\"']?\s{{0,8}}[=:]\s{{0,8}}){group}"),
        header=re.compile(rf"(?i)\b({HEADERS})([ \t]{{0,3}}:[ \t]{{0,3}})([^\s\"'][^\r\n]*)"),
        token=re.compile(r"\b((?i:bearer|basic)[ \t]{1,3})(?=[\w.~+/=-]{0,256}?(?:[0-9=]|[a-z][A-Z]))[\w.~+/=-]{8,}"),
        key=re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    )


def redacted(text: str) -> str:
    """Return the text with its secrets hidden; a text without secrets is returned unchanged.

    >>> redacted("503 for https://bot:hunter2@api.example/x?token=abc")
    '503 for https://***@api.example/x?***'
    >>> redacted("connection to host=db user=me password='hunter 2' failed")
    'connection to host=db user=me password=*** failed'
    """
    if not _compiled and not _compile():
        return HIDDEN
    patterns = _compiled[0]
    if ":" in text:
        text = _without_user_info(text, patterns)
        text = patterns.header.sub(_header, text)
    if "?" in text or "#" in text:
        text = patterns.query.sub(_query, text)
    if "=" in text or ":" in text:
        text = patterns.cookies.sub(_cookies, text)
        text = patterns.group.sub(rf"\1{HIDDEN}", text)
        text = patterns.value.sub(_value, text)
    if "," in text and ("'" in text or '"' in text):
        text = patterns.pair.sub(rf"\1{HIDDEN}", text)
    if " " in text or "\t" in text:
        text = patterns.token.sub(rf"\1{HIDDEN}", text)
    return patterns.key.sub(HIDDEN, text) if "AKIA" in text or "ASIA" in text else text


def escaped(text: str) -> str:
    r"""Return the text on one line, with characters that are not printable as Python escape sequences.

    All line ends, terminal control sequences and marks that change the direction of text are not printable.

    >>> escaped("two\nlines\x1b[2J")
    'two\\nlines\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode("ascii")
        for letter in text
    )


def one_line(text: str, longest: int = MAX_LINE) -> str:
    r"""Return a text without secrets, on one line, of at most `longest` characters.

    >>> one_line("GET http://me:secret@cache/\nfailed", 30)
    'GET http://***@cache/\\nfailed'
    """
    text = escaped(redacted(_truncate(text)))
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def short_repr(thing: object, longest: int = MAX_LINE) -> str:
    """Return the `repr` of an object as `one_line` does, or a substitute if the `repr` fails.

    >>> short_repr(OSError("down"))
    "OSError('down')"
    """
    try:
        return one_line(repr(thing), longest)
    except Exception:
        return f"a {type(thing).__name__} that can't be shown"


def described(error: BaseException, longest: int = 200) -> str:
    """Return the type and the text of an error as `one_line` does.

    >>> described(TimeoutError("slow"))
    'TimeoutError: slow'
    """
    return one_line(f"{type(error).__name__}: {_text_of(error)}", longest)


def trace(error: BaseException, indent: str = "") -> str:
    """Return the traceback of an error without secrets and control characters, each line after the indent.

    With an indent, a line of an error's text can't be mistaken for a line of the log. If an error has too many
    causes or members, they are left out; of a huge text only the beginning is shown.

    >>> trace(OSError("down\\x1b[2J\\n2026-01-01 ERROR forged"), "  ").splitlines()
    ['  OSError: down\\\\x1b[2J', '  2026-01-01 ERROR forged']
    """
    from traceback import format_exception, format_tb

    lines = [*format_tb(error.__traceback__), f"{type(error).__name__}: {_text_of(error)}"]
    if not _is_too_large(error):
        try:
            lines = format_exception(error)
        except Exception:  # groups within groups, or an error that can't be formatted
            pass
    bounded = (row if len(row) <= MAX_SCANNED else f"{_truncate(row)}…\n" for row in lines)
    text = redacted(_truncate("".join(bounded), MAX_TRACE))
    return "\n".join(f"{indent}{escaped(row)}" for row in text.removesuffix("\n").split("\n"))


def _is_too_large(error: BaseException) -> bool:
    """Return whether an error has more causes, or groups with more members, than a traceback should show.

    A member of several groups counts as often: `traceback` formats it as often, and sixty groups that each hold the one
    before twice have more members than can be counted.
    """
    seen, left = {id(error)}, [(error, 0)]
    for _ in range(MAX_PARTS):
        if not left:
            return False
        part, depth = left.pop()
        if depth > MAX_CAUSES:
            return True
        if isinstance(part, BaseExceptionGroup):
            left += [(member, depth + 1) for member in part.exceptions[:MAX_PARTS]]
        before = part.__cause__ or part.__context__
        if before is not None and id(before) not in seen:
            seen.add(id(before))
            left.append((before, depth + 1))
    return True


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(the error has no readable text)"


def _truncate(text: str, longest: int = MAX_SCANNED) -> str:
    """Return the beginning of a text. If it ends inside a URL, hide that URL: its user info may be cut off."""
    if len(text) <= longest:
        return text
    text = text[:longest]
    before, scheme, after = text.rpartition("://")
    return f"{before}{scheme}{HIDDEN}" if scheme and "@" not in after and " " not in after else text


def _without_user_info(text: str, patterns: _Patterns) -> str:
    pieces: list[str] = []
    done = word_end = last_at = 0
    for match in patterns.scheme.finditer(text):
        begin = match.end()
        if begin < done:
            continue  # inside hidden text
        if begin >= word_end:  # several URLs in one word: it is read once
            word_end = begin + len(_matched(patterns.word, text, begin))
            last_at = text.rfind("@", begin, word_end)
        end = _end_of_user_info(text, begin, word_end, last_at, patterns)
        if end > begin:
            pieces += (text[done:begin], HIDDEN)
            done = end
    return "".join(pieces) + text[done:] if pieces else text


def _end_of_user_info(text: str, begin: int, word_end: int, last_at: int, patterns: _Patterns) -> int:
    """Return the position of the @ that ends the user info that starts at `begin`; `begin` if there is none.

    The word ends at `word_end`, and its last @ is at `last_at`, if that is not before `begin`.

    A password with characters that URLs require to be escaped is hidden as well: if there is a colon, and the text
    after it is not a port, or the scheme is not one of `SCHEMES_WITH_AT`, the user info ends at the last @ of the word.
    If the text is not a port and the word has no @, it ends at the next @ on the line, or else at the end of the word.
    """
    authority = _matched(patterns.authority, text, begin).rstrip("\\")
    if ":" in authority and last_at >= begin and not _scheme(text, begin).endswith(SCHEMES_WITH_AT):
        return last_at
    if all(patterns.host.fullmatch(part) for part in authority.split(",")):
        return begin
    if all(patterns.host.fullmatch(part) for part in authority.rstrip(CLOSING).split(",")):
        return begin
    quoted = patterns.line_end.match(authority)
    if quoted is not None and "@" not in authority and patterns.host.fullmatch(quoted[1]):
        return begin
    if ":" not in authority.rpartition("@")[0] and "@" in authority:
        return begin + authority.rindex("@")
    if last_at >= begin:
        return last_at
    stop = text.find("\n", word_end, word_end + MAX_USER_INFO_GAP)
    at = text.find("@", word_end, word_end + MAX_USER_INFO_GAP if stop < 0 else stop)
    return word_end if at < 0 else at


def _scheme(text: str, begin: int) -> str:
    """Return the end of the scheme of the URL whose host or user info is at `begin`."""
    return text[max(0, begin - 16) : begin].rstrip(":/\\").lower()


def _matched(pattern: re.Pattern[str], text: str, begin: int) -> str:
    found = pattern.match(text, begin)
    return found[0] if found is not None else ""


def _query(match: re.Match[str]) -> str:
    mark, rest = match[0][0], match[1]
    body = rest.rstrip(CLOSING)
    if not body:
        return match[0]
    if mark == "?" and "=" in body:
        return f"?{HIDDEN}{rest[len(body) :]}"
    if not _in_url(match.string, match.start()) or (mark == "#" and "=" not in body and "?" not in body):
        return match[0]
    return f"{mark}{HIDDEN}{rest[len(body) :]}"


def _in_url(text: str, position: int) -> bool:
    """Return whether the word around this position starts with the scheme of a URL."""
    first = max(0, position - MAX_URL)
    scheme = max(text.rfind("://", first, position), text.rfind(r":\/\/", first, position))
    return scheme >= 0 and scheme + len(_matched(_compiled[0].word, text, scheme)) >= position


def _value(match: re.Match[str]) -> str:
    name, sign, value = match.groups()
    if value.lstrip("bu\\")[:1] in ("'", '"'):
        return f"{name}{sign}{HIDDEN}"
    body = value.rstrip(CLOSING)
    return f"{name}{sign}{HIDDEN}{value[len(body) :]}" if body else match[0]


def _cookies(match: re.Match[str]) -> str:
    body = match[2].rstrip(CLOSING)
    return f"{match[1]}{HIDDEN}{match[2][len(body) :]}" if body else match[0]


def _header(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}{HIDDEN}"
