"""Judge network errors and timeouts of HTTP libraries by the names of their classes, without importing a library.

=========================================  ==========================================================================
refused, DNS, any failure to connect       the server never saw the request: a blip
timeouts of connecting and of a pool       the server never saw the request: overload
any other timeout                          overload
resets, cut-off and garbled responses      a blip; the server may have seen the request
TLS verification and protocol mismatches,  fatal, and says nothing about the server: neither that it is up nor that it
URLs and schemes that cannot be used       is down; also if the library took such a URL for a host that is not there
=========================================  ==========================================================================

A class is looked up by the root of its module and its name, then its bases. What a class stands for is cached; where
the cause decides (a `ConnectError` for a certificate, an SDK's error for a timeout), each error is looked into.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from abate.decide.outcome import BLIP, FATAL_UNREACHED, OVERLOAD, OVERLOAD_UNREACHED, UNREACHED, Ruling
from abate.decide.responses import read

__all__ = ["is_always_fatal", "is_decided_by_type", "judge_network_error"]

MAX_CAUSES = 10
"""The most errors in one chain of causes that are looked into."""
MAX_TYPES = 500
"""The most classes whose meaning is cached."""
MAX_BASES = 50
"""The most bases of a class that are looked up."""


class _Meaning(NamedTuple):
    """What a class of errors stands for."""

    ruling: Ruling | None
    """None if the class alone says nothing."""
    inside: Literal["", "fatal", "any"] = ""
    """Which rulings on an error inside such an error count instead: none, fatal ones (TLS), or all."""


_NOTHING = _Meaning(None)
_INSIDE = _Meaning(None, "any")
_CONNECT = _Meaning(UNREACHED, "fatal")
_BROKEN = _Meaning(BLIP, "fatal")
_FATAL = _Meaning(FATAL_UNREACHED)
_HTTPX = {
    "ConnectError": _CONNECT,
    "ProxyError": _CONNECT,
    "ConnectTimeout": _Meaning(OVERLOAD_UNREACHED),
    "PoolTimeout": _Meaning(OVERLOAD_UNREACHED),
    "ConnectionNotAvailable": _Meaning(OVERLOAD_UNREACHED),
    "TimeoutException": _Meaning(OVERLOAD),
    "NetworkError": _BROKEN,
    "RemoteProtocolError": _Meaning(BLIP),
    "UnsupportedProtocol": _FATAL,
    "InvalidURL": _FATAL,
}
_SDK = {"APITimeoutError": _Meaning(OVERLOAD, "any"), "APIConnectionError": _Meaning(BLIP, "any")}
"""Errors of SDKs for APIs, of which several are made by one generator: the error that they were raised from decides."""

MEANINGS: dict[str, dict[str, _Meaning]] = {
    "builtins": {
        "ConnectionRefusedError": _Meaning(UNREACHED),
        "ConnectionError": _Meaning(BLIP),
        "TimeoutError": _Meaning(OVERLOAD),
    },
    "socket": {"gaierror": _Meaning(UNREACHED), "herror": _Meaning(UNREACHED)},
    "ssl": {"SSLCertVerificationError": _FATAL, "SSLError": _BROKEN},
    "httpx": _HTTPX,
    "httpx2": _HTTPX,
    "httpcore": _HTTPX,
    "httpcore2": _HTTPX,
    "urllib3": {
        "NewConnectionError": _CONNECT,
        "ConnectTimeoutError": _Meaning(OVERLOAD_UNREACHED),
        "EmptyPoolError": _Meaning(OVERLOAD_UNREACHED),
        "TimeoutError": _Meaning(OVERLOAD),
        "ProxyError": _Meaning(UNREACHED, "any"),
        "ProtocolError": _Meaning(BLIP, "any"),
        "IncompleteRead": _Meaning(BLIP),
        "InvalidChunkLength": _Meaning(BLIP),
        "InvalidHeader": _Meaning(BLIP),
        "SSLError": _INSIDE,
        "MaxRetryError": _INSIDE,
        "LocationValueError": _FATAL,
        "ProxySchemeUnsupported": _FATAL,
    },
    "requests": {
        "ConnectTimeout": _Meaning(OVERLOAD_UNREACHED),
        "Timeout": _Meaning(OVERLOAD),
        "ChunkedEncodingError": _Meaning(BLIP, "any"),
        "ConnectionError": _Meaning(BLIP, "any"),
        "MissingSchema": _FATAL,
        "InvalidSchema": _FATAL,
        "InvalidURL": _FATAL,
        "URLRequired": _FATAL,
    },
    "aiohttp": {
        "ClientConnectorCertificateError": _FATAL,
        "ServerFingerprintMismatch": _FATAL,
        "ClientConnectorError": _CONNECT,
        "ConnectionTimeoutError": _Meaning(OVERLOAD_UNREACHED),
        "ServerTimeoutError": _Meaning(OVERLOAD),
        "ClientConnectionError": _BROKEN,
        "ClientPayloadError": _Meaning(BLIP),
        "ClientResponseError": _INSIDE,
        "HttpProcessingError": _Meaning(BLIP),
        "InvalidURL": _FATAL,
        "NonHttpUrlClientError": _FATAL,
    },
    "botocore": {
        "ConnectTimeoutError": _Meaning(OVERLOAD_UNREACHED),
        "EndpointConnectionError": _Meaning(UNREACHED),
        "ProxyConnectionError": _Meaning(UNREACHED),
        "ReadTimeoutError": _Meaning(OVERLOAD),
        "SSLError": _FATAL,
        "HTTPClientError": _BROKEN,
        "IncompleteReadError": _Meaning(BLIP),
    },
    "urllib": {"HTTPError": _NOTHING, "URLError": _Meaning(BLIP, "any"), "ContentTooShortError": _Meaning(BLIP)},
    "http": {
        "IncompleteRead": _Meaning(BLIP),
        "BadStatusLine": _Meaning(BLIP),
        "LineTooLong": _Meaning(BLIP),
        "InvalidURL": _FATAL,
        "UnknownProtocol": _Meaning(BLIP),
    },
}
"""By root module and class name; the first match in the method resolution order counts."""

TLS_MISMATCH = re.compile(
    "ACCESS_DENIED|CERTIFICATE|HANDSHAKE_FAILURE|HTTP_REQUEST|INSUFFICIENT_SECURITY|NO_CIPHERS|NO_PROTOCOLS"
    "|PROTOCOL_VERSION|UNKNOWN_CA|UNRECOGNIZED_NAME|UNSAFE_LEGACY|UNSUPPORTED_PROTOCOL|WRONG_VERSION_NUMBER"
)
"""Parts of an `ssl.SSLError`'s reason that another attempt would meet again. With other reasons, such as a connection
that was closed during the handshake, it is a network error."""

NO_HOST = re.compile(r'[\x00-\x20"#%/<>?@\[\\\]^`{|}\x7f]|^\.|\.\.|[^.:]{64}|:.*[^0-9a-f.:]', re.IGNORECASE)
"""What neither a host name nor an IPv6 address may contain: some characters, empty labels, labels too long."""
MAX_HOST, MAX_PORT = 300, 65_535
"""The longest host that is looked at, and the highest port."""
NO_URL = re.compile("unknown url type|no host given")
"""How urllib's messages about URLs without a scheme or a host begin."""

BUILTIN_ERRORS = frozenset(
    kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, Exception)
)
"""Python's own exceptions, which carry no more than their arguments."""

_meanings: dict[type, _Meaning] = {}
_rulings: dict[type, Ruling | None] = {}
"""Rulings on classes of errors, where the class decides."""


def judge_network_error(error: BaseException) -> Ruling | None:
    """Return the ruling on a network error or a timeout; None for any other error.

    >>> judge_network_error(ConnectionRefusedError())
    Ruling(retry=True, reason='blip', hint=None, reached=False, safe=None, answered=False)
    >>> judge_network_error(ValueError()) is None
    True
    """
    kind = type(error)
    if kind in _rulings:
        return _rulings[kind]
    meaning = _meaning_of(kind)
    if meaning.inside:
        return _judge_inside(error, meaning, set())
    if len(_rulings) < MAX_TYPES:
        _rulings[kind] = meaning.ruling
    return meaning.ruling


def is_decided_by_type(kind: type) -> bool:
    """Return whether all errors of this class have the same ruling."""
    return not _meaning_of(kind).inside


def is_always_fatal(kind: type) -> bool:
    """Return whether all errors of this class are fatal.

    >>> import ssl
    >>> is_always_fatal(ssl.SSLCertVerificationError), is_always_fatal(OSError)
    (True, False)
    """
    return _meaning_of(kind) is _FATAL


def _meaning_of(kind: type) -> _Meaning:
    known = _meanings.get(kind)
    if known is not None:
        return known
    meaning = _look_up(kind)
    if len(_meanings) < MAX_TYPES:
        _meanings[kind] = meaning
    return meaning


def _look_up(kind: type) -> _Meaning:
    for base in kind.__mro__[:MAX_BASES]:
        root = str(base.__module__).partition(".")[0]
        found = MEANINGS.get(root, {}).get(base.__name__) or _SDK.get(base.__name__)
        if found is not None:
            return found
    return _NOTHING


def _judge_inside(error: BaseException, own: _Meaning, seen: set[int]) -> Ruling | None:
    """Return the ruling on an error: by the first error inside it whose ruling counts, else its own."""
    if _is_fatal_by_reason(error):
        return FATAL_UNREACHED
    seen.add(id(error))
    for inner in _errors_inside(error):
        if id(inner) in seen or len(seen) >= MAX_CAUSES:
            continue
        meaning = _meaning_of(type(inner))
        ruling = _judge_inside(inner, meaning, seen) if meaning.inside else meaning.ruling
        if ruling is FATAL_UNREACHED or (ruling is not None and own.inside == "any"):
            return ruling
    return FATAL_UNREACHED if own is _CONNECT and _has_unusable_address(error) else own.ruling


def _is_fatal_by_reason(error: BaseException) -> bool:
    """Return whether an error of TLS or urllib gives a reason that another attempt would meet again."""
    if not isinstance(error, OSError):
        return False
    reason = read(error, "reason")
    if not isinstance(reason, str):
        return False
    # an `ssl.SSLError`, without importing ssl
    is_tls_mismatch = read(error, "library") == "SSL" and TLS_MISMATCH.search(reason[:100]) is not None
    return is_tls_mismatch or NO_URL.match(reason) is not None


def _has_unusable_address(error: BaseException) -> bool:
    """Return whether the request of an error shows a host or port that no server can have.

    Some libraries pass such URLs on: the name is not found then, or the port is cut to 16 bits.
    """
    url = read(read(error, "request"), "url")
    place = error if url is None else url
    host, port = read(place, "host"), read(place, "port")
    if isinstance(port, int) and not 0 <= port <= MAX_PORT:
        return True
    if not isinstance(host, str):
        return False
    host = host[:MAX_HOST]
    if ":" in host:
        host = host.partition("%")[0]
    # transports for unix sockets write paths as hosts
    return NO_HOST.search(host) is not None and "%2f" not in host.lower()


def _errors_inside(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors that an error was made from: raised from, or given as its reason or as arguments."""
    for inner in (error.__cause__, read(error, "reason"), *error.args[:MAX_CAUSES]):
        if isinstance(inner, BaseException):
            yield inner
