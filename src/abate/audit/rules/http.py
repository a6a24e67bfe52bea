"""HTTP: which methods and which answers are retried, and whether `Retry-After` is obeyed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from abate.audit.call_graph import calls_of, reached
from abate.audit.control_flow import FALL, ways_out
from abate.audit.findings import Spot, rule
from abate.audit.module_index import inside
from abate.audit.names import argument
from abate.audit.program import Program, ResolvedCall
from abate.audit.readers.errors import caught, decides
from abate.audit.retries import Retries

UNSAFE = frozenset({"POST", "PATCH"})
HTTP_LIBRARIES = ("requests.", "httpx.", "aiohttp.", "urllib3.", "httpx2.", "niquests.")
NEVER_HEALS = frozenset({400, 401, 403, 404, 405, 406, 410, 411, 413, 414, 415, 422, 501})
"""Client errors that another attempt won't change; 408, 409, 423, 425 and 429 may pass."""
ANY_STATUS = frozenset(
    {
        "requests.RequestException", "requests.exceptions.RequestException", "requests.HTTPError", "httpx.HTTPError",
        "requests.exceptions.HTTPError", "httpx.HTTPStatusError", "aiohttp.ClientError", "aiohttp.ClientResponseError",
        "aiohttp.client_exceptions.ClientResponseError", "aiohttp.client_exceptions.ClientError",
        "urllib.error.HTTPError", "urllib.error.URLError", "Exception", "BaseException",
    }
)  # fmt: skip
"""Errors that stand for client errors as well."""
BUSY = frozenset({429, 503})
RATE_LIMIT_ERRORS = (
    "RateLimitError",
    "TooManyRequests",
    "RateLimitException",
    "TooManyRequestsException",
    "RateLimitExceeded",
)
STATUS_TESTS = ("status", "code", "response", "reason", "retryable", "is_transient", "should_retry", "errno")


@rule(
    "non-idempotent-retry",
    "warning",
    "a POST or PATCH is retried",
    outage="A request that timed out may have been carried out: the retry orders, pays or sends a second time.",
    abate=(
        "abate's HTTP clients repeat a POST only with an Idempotency-Key or if the server never took it (refused, 429)"
    ),
    fixes={
        "": "send an Idempotency-Key that stays the same on every attempt, or retry only if the connection was refused",
        "urllib3": "leave allowed_methods at its default, which has no POST and no PATCH",
    },
)
def non_idempotent_retry(program: Program) -> Iterator[Spot]:
    """Find POST and PATCH among the methods of ``Retry``, and in code that a retry of timeouts runs again."""
    for retries in program.retries:
        if not retries.retries:
            continue
        if retries.library == "urllib3":
            methods = retries.methods or ()
            unsafe = sorted(UNSAFE.intersection(methods)) if "ANY" not in methods else ["any method"]
            if unsafe:
                yield program.spot(
                    retries.node, retries.function, f"{retries.label} repeats {' and '.join(unsafe)}", retries.library
                )
        elif _after_timeouts(retries):
            call = next((call for call in calls_of(program, retries) if _sends_unsafely(call)), None)
            if call is not None and not _has_key(call):
                method = _method(call)
                yield program.spot(
                    call.node,
                    call.function,
                    f"{retries.label} repeats a {method}, also after a timeout",
                    retries.library,
                )


def _after_timeouts(retries: Retries) -> bool:
    """Return whether an error is retried after which the server may have acted."""
    if retries.errors is None:
        return False
    after = (
        "Timeout",
        "RequestException",
        "HTTPError",
        "ConnectionError",
        "Exception",
        "ClientError",
        "RequestError",
        "TransportError",
    )
    return any(name.rpartition(".")[2].endswith(after) or name == "BaseException" for name in retries.errors)


def _method(call: ResolvedCall) -> str:
    last = (call.name or "").rpartition(".")[2]
    if last == "request":
        given = argument(call.node, "method", 0)
        return given.value.upper() if isinstance(given, ast.Constant) and isinstance(given.value, str) else ""
    return last.upper()


def _sends_unsafely(call: ResolvedCall) -> bool:
    return call.name is not None and call.name.startswith(HTTP_LIBRARIES) and _method(call) in UNSAFE


def _has_key(call: ResolvedCall) -> bool:
    """Return whether the function around a call mentions an idempotency key."""
    for node in inside(call.function.node):
        match node:
            case ast.Constant(value=str(text)) | ast.Name(id=text) | ast.keyword(arg=str(text)) if (
                "idempoten" in text.lower()
            ):
                return True
    return False


@rule(
    "client-error-retried",
    "warning",
    "answers that won't change are retried",
    outage="Wrong credentials, missing things and bad requests are asked for again and again, and look like an outage.",
    abate="on=abate.http.transient retries 408, 425, 429, 500, 502, 503, 504 and connection errors, nothing else",
    fixes={
        "": "look at the status before the next attempt: retry 429, 502, 503 and 504, raise other 4xx at once",
        "urllib3": "take 4xx other than 408, 425 and 429 out of status_forcelist",
        "backoff": "pass giveup=lambda error: error.response is not None and error.response.status_code < 500",
        "tenacity": "use retry_if_exception(…) with a function that looks at the status",
    },
)
def client_error_retried(program: Program) -> Iterator[Spot]:
    """Find 4xx in lists of codes, and errors that stand for any status around code that raises for the status."""
    for retries in program.retries:
        if not retries.retries:
            continue
        hopeless = sorted(NEVER_HEALS.intersection(retries.codes))
        if hopeless:
            codes = ", ".join(map(str, hopeless))
            yield program.spot(
                retries.node,
                retries.function,
                f"{retries.label} retries {codes}, which another attempt won't change",
                retries.library,
            )
        elif retries.library == "loop":
            for handler in retries.swallows:
                names = caught(handler, retries.function, program.names)
                named = ANY_STATUS.intersection(names)
                if (
                    not named
                    or decides(handler)
                    or _looks_at_status(handler)
                    or _judged_before(handler, retries, program)
                ):
                    continue
                if what := _raises_for_status(program, retries):
                    yield program.spot(
                        handler,
                        retries.function,
                        f"{retries.label} catches {min(named)}, and {what} raises it for 401 and 404 too",
                        "loop",
                    )
        elif retries.errors is not None and (named := ANY_STATUS.intersection(retries.errors)):
            what = _raises_for_status(program, retries)
            if what:
                yield program.spot(
                    retries.node,
                    retries.function,
                    f"{retries.label} retries {min(named)}, and {what} raises it for 401 and 404 too",
                    retries.library,
                )


def _raises_for_status(program: Program, retries: Retries) -> str:
    """Return the call that turns a client error into an exception, in the code that is run again."""
    for call in reached(program, retries, depth=1):
        if isinstance(call.node.func, ast.Attribute) and call.node.func.attr == "raise_for_status":
            return "raise_for_status" if not _status_is_tested(call) else ""
        if call.name == "urllib.request.urlopen":
            return "urlopen"
    return ""


def _status_is_tested(call: ResolvedCall) -> bool:
    """Return whether the function looks at the status before it raises."""
    return any(
        isinstance(node, ast.If)
        and any(isinstance(part, ast.Attribute) and "status" in part.attr for part in inside(node.test))
        for node in inside(call.function.node)
    )


def _judged_before(handler: ast.ExceptHandler, retries: Retries, program: Program) -> bool:
    """Return whether another handler in the loop takes errors with a status out."""
    return any(
        isinstance(node, ast.ExceptHandler)
        and node is not handler
        and any(
            name.endswith(("HTTPError", "HTTPStatusError", "ClientResponseError"))
            for name in caught(node, retries.function, program.names)
        )
        for node in inside(retries.node)
    )


def _looks_at_status(handler: ast.ExceptHandler) -> bool:
    for node in inside(handler.body):
        match node:
            case ast.Attribute(attr=text) | ast.Name(id=text) if any(word in text.lower() for word in STATUS_TESTS):
                return True
    return False


@rule(
    "retry-after-ignored",
    "warning",
    "the wait that the server asks for is ignored",
    outage="The server says when it can take more, and gets it earlier: rate limits are never left, bans get longer.",
    abate="on=abate.http.transient waits as long as Retry-After says and adds jitter; beyond max_hint it gives up",
    fixes={
        "": "read the Retry-After header of 429 and 503, wait at least that long, and add jitter",
        "urllib3": "leave respect_retry_after_header at its default (True)",
        "tenacity": "use wait_exception(…) or a wait function that reads error.response.headers['Retry-After']",
        "backoff": "use backoff.runtime with a value that reads Retry-After",
    },
)
def retry_after_ignored(program: Program) -> Iterator[Spot]:
    """Find retries of 429 and 503 that read no hint."""
    for retries in program.retries:
        if not retries.retries or (retries.wait.hint and retries.library != "urllib3"):
            continue
        if retries.library == "urllib3":
            if not retries.wait.hint and (not retries.codes or BUSY.intersection(retries.codes)):
                yield program.spot(
                    retries.node, retries.function, f"{retries.label} has respect_retry_after_header=False", "urllib3"
                )
            continue
        reason = _busy_answer(retries)
        if reason and retries.wait.known and not _reads_hint(program, retries):
            yield program.spot(
                retries.node,
                retries.function,
                f"{retries.label} retries {reason} and reads no Retry-After",
                retries.library,
            )


def _busy_answer(retries: Retries) -> str:
    """Return which answer that may carry a hint is retried, or nothing."""
    for name in retries.errors or ():
        if name.rpartition(".")[2] in RATE_LIMIT_ERRORS:
            return name.rpartition(".")[2]
    codes = BUSY.intersection(retries.codes)
    if not codes and retries.library == "loop":
        codes = frozenset(_compared_codes(retries.node))
    return str(min(codes)) if codes else ""


def _compared_codes(loop: ast.AST) -> set[int]:
    """Return the busy codes that lead to another round: a condition names them, and does not end the loop for them."""
    found: set[int] = set()
    for node in inside(loop):
        if not isinstance(node, ast.If):
            continue
        ends = not {FALL, "continue"} & ways_out(node.body)
        for compare in inside(node.test):
            if isinstance(compare, ast.Compare):
                excludes = isinstance(compare.ops[0], ast.NotIn | ast.NotEq)
                if ends == excludes:
                    found |= {
                        part.value
                        for part in inside(compare)
                        if isinstance(part, ast.Constant) and type(part.value) is int and part.value in BUSY
                    }
    return found


def _reads_hint(program: Program, retries: Retries) -> bool:
    """Return whether the function around a retry, or one that it calls, mentions a hint."""
    functions = {id(retries.function): retries.function}
    for call in reached(program, retries, depth=1):
        made = program.names.called(call.name)
        if made is not None:
            functions[id(made)] = made
    for covered in retries.covered:
        functions[id(covered.function)] = covered.function
    for function in functions.values():
        for node in inside(function.node):
            match node:
                case ast.Constant(value=str(text)) | ast.Name(id=text) | ast.Attribute(attr=text):
                    lower = text[:300].lower().replace("_", "-")
                    if "retry-after" in lower or ("ratelimit" in lower.replace("-", "") and "error" not in lower):
                        return True
    return False
