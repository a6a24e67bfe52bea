"""Headers of any value, and responses of any timing: rules that hold for all of them."""

import asyncio
import ipaddress
from contextlib import suppress

import pytest
import trio
from google.rpc import error_details_pb2, status_pb2
from hypothesis import example, given
from hypothesis import strategies as st

import abate
from abate import clock
from abate.clients.asgi import Middleware
from abate.clients.client_rules import Library, client_rules
from abate.clients.grpc_rules import _hint, _retry_delay
from abate.clients.grpc_server import _caller_limits, peer_address
from abate.clients.headers import upstream_gave_up
from abate.clients.server_middleware import ServerSettings
from abate.clients.trust import Caller, Secret, Trust
from abate.clients.wsgi import Middleware as WsgiMiddleware
from abate.decide.outcome import Outcome, Ruling
from abate.decide.rules import build_rules
from abate.testing import VirtualClock

HOSTILE = [
    str(10**18), "9" * 30, "9" * 65_536, "nan", "NaN", "inf", "-inf", "-1", "-0", "+5", "1e3", "1e400", "0x10", "1_000",
    "5.0", "5\x0b", "\x0c5", "\xa05", "\u20035",
    "5,6", "5;q=1", "", " ", "\t", "\x00", "5\x00", "\u0661\u0662", "\u0b67", "\u00b2", "\u2167", "五",
    "x" * 65_536, "true", "None",
]  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(HOSTILE), st.text(), st.integers().map(str), st.floats().map(str), st.integers(0, 10**10).map(str)
)


def latin(text):
    """A value as a server hands it on."""
    return text.encode("utf-8", "surrogatepass")


def everybody(request):
    """Believe all: what is tried here are the values."""
    return True


def plausible(text):
    """What a header may mean, by the rule: ASCII digits alone, as HTTP allows them to be padded."""
    digits = text.strip(" \t")
    return int(digits) if digits and set(digits) <= set("0123456789") and len(digits) < 20 else None


def expected(deadlines, attempts):
    """The attempt, and the seconds that are left, which a request with these headers asks for."""
    left = plausible(deadlines[0]) if len(deadlines) == 1 else None
    attempt = plausible(attempts[0]) if len(attempts) == 1 else None
    return (
        attempt if attempt and attempt <= 10**6 else 1,
        None if left is None or left > 10**9 else max(left / 1000, 0.1) if left else 0.0,
    )


def asgi_told(headers):
    """What an ASGI application is told, or the status that is answered instead."""
    told = []

    async def app(scope, receive, send):
        told.append((scope["abate.attempt"], abate.remaining()))

    async def send(message):
        if message["type"] == "http.response.start":
            told.append(message["status"])

    scope = {"type": "http", "headers": headers, "client": ("10.1.2.3", 4711)}
    with suppress(StopIteration):
        Middleware(app, trusted=everybody)(scope, None, send).send(None)  # nothing in there waits
    return told


@given(st.lists(VALUES, max_size=2), st.lists(VALUES, max_size=2))
@example([str(10**18)], ["9" * 65_536])
def test_a_header_of_any_value_is_read_by_one_rule_or_ignored(deadlines, attempts):
    """In ASGI: one number in ASCII digits counts, anything else and whatever came twice is ignored; nothing crashes."""
    headers = [(b"Abate-Deadline", latin(value)) for value in deadlines]
    headers += [(b"abate-attempt", latin(value)) for value in attempts]
    attempt, left = expected(deadlines, attempts)
    with VirtualClock():
        assert asgi_told(headers) == [504 if left == 0.0 else (attempt, left)]


@given(st.none() | VALUES, st.none() | VALUES)
def test_the_same_in_wsgi(deadline, attempt):
    """A header that came twice has a comma in it there."""
    told = []

    def app(environ, start_response):
        told.append((environ["abate.attempt"], abate.remaining()))
        return []

    environ = {}
    if deadline is not None:
        environ["HTTP_ABATE_DEADLINE"] = deadline
    if attempt is not None:
        environ["HTTP_ABATE_ATTEMPT"] = attempt
    number, left = expected([deadline] if deadline is not None else [], [attempt] if attempt is not None else [])
    with VirtualClock():
        body = WsgiMiddleware(app, trusted=everybody)(environ, lambda status, headers: told.append(int(status[:3])))
        if hasattr(body, "close"):
            body.close()
    assert told == [504 if left == 0.0 else (number, left)]


class Call:
    """A servicer context as far as it is asked."""

    def __init__(self, metadata, peer="ipv4:10.1.2.3:4711"):
        self.metadata, self.name = metadata, peer

    def invocation_metadata(self):
        return self.metadata

    def peer(self):
        return self.name


@given(st.lists(VALUES | st.binary(), max_size=2), st.lists(VALUES | st.binary(), max_size=2))
def test_the_same_in_grpc(deadlines, attempts):
    """Metadata may be bytes too, which count for nothing."""
    metadata = [("abate-deadline", value) for value in deadlines] + [("abate-attempt", value) for value in attempts]
    limits, _ = _caller_limits(ServerSettings(everybody, 0.1), Call(metadata))
    texts = [[value for value in values if isinstance(value, str)] for values in (deadlines, attempts)]
    assert (limits.attempt, limits.left) == expected(*texts)


ADDRESSES = st.ip_addresses().map(str)


@given(st.none() | st.text() | ADDRESSES, st.ip_addresses().map(ipaddress.ip_network))
def test_a_peer_of_any_name_is_believed_only_in_the_network(peer, network):
    """What is no address is in no network."""
    believed = Trust(network).believes(Caller(None, peer, None))
    assert not believed or ipaddress.ip_network(peer).overlaps(network) or "ffff" in peer.lower()


@given(st.text() | ADDRESSES.map(lambda host: f"ipv4:{host}:1") | st.text().map("ipv6:".__add__))
def test_any_name_of_a_grpc_peer_can_be_read(peer):
    """It is an address to look at, or none."""
    read = peer_address(peer)
    assert read is None or isinstance(read, str)
    Trust("10.0.0.0/8").believes(Caller(None, read, None))


@given(st.text(), st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=16))
@example("\ud800", "only-our-services-know-this")
def test_only_the_secret_itself_is_believed(sent, secret):
    """Whatever else is sent, it is not believed, and nothing crashes."""
    trust = Trust(Secret(secret))
    assert trust.believes(Caller(None, None, secret))
    assert trust.believes(Caller(None, None, sent)) is (sent == secret)


NAMES = st.sampled_from(["Abate-Exhausted", "Retry-After", "Date", "retry-after", "DATE"])


@given(st.integers(100, 599), st.dictionaries(NAMES, VALUES, max_size=4))
def test_a_response_with_any_headers_is_judged(status, headers):
    """An upstream's headers, whatever they are, make a ruling or none; a hint is not negative, and not NaN."""
    library = Library(
        name="any",
        judge_error=lambda error: None,
        read_response=lambda response: response,
        host_of=str,
        body_of=lambda response: None,
        target_of=lambda request: ("GET", request),
        mark=print,
    )
    rules = client_rules(build_rules(abate.http.transient), library, replayable=True)
    ruling = rules.judge(Outcome(result=(status, headers)))
    assert (ruling is None) is (status < 400)
    if ruling is not None:
        assert isinstance(ruling, Ruling)
        assert ruling.hint is None or 0.0 <= ruling.hint <= 10.0**9
        assert status >= 400
        if upstream_gave_up(headers.get("Abate-Exhausted")):
            assert not ruling.retry


@given(
    st.lists(st.tuples(st.sampled_from(["grpc-retry-pushback-ms", "grpc-status-details-bin"]), VALUES | st.binary()))
)
def test_trailing_metadata_of_any_kind_are_read(metadata):
    """A server's metadata, whatever they are, are a wait that is not negative, or none."""
    hint = _hint(tuple(metadata))
    assert hint is None or hint >= 0.0


@st.composite
def statuses(draw):
    """Serialized statuses with details of any kind, some of them broken."""
    status = status_pb2.Status()
    for _ in range(draw(st.integers(0, 3))):
        detail = status.details.add()
        detail.type_url = draw(
            st.sampled_from(["type.googleapis.com/google.rpc.RetryInfo", "/google.rpc.RetryInfo", "x"])
        )
        detail.value = draw(st.binary(max_size=20))
        if draw(st.booleans()):
            info = error_details_pb2.RetryInfo()
            info.retry_delay.seconds = draw(st.integers(-(2**63), 2**63 - 1))
            info.retry_delay.nanos = draw(st.integers(-(2**31), 2**31 - 1))
            detail.value = info.SerializeToString() + detail.value[:1]
    return status.SerializeToString()


@given(st.binary() | statuses())
def test_status_details_of_any_bytes_are_read(details):
    """Broken details are no hint, and neither are those of more than thirty years."""
    delay = _retry_delay(details)
    assert delay is None or 0.0 <= delay <= 10.0**9


# -- when a response begins and ends, and the deadline passes


SECONDS = st.integers(0, 6)


@given(
    deadline=st.integers(1, 6),
    floor=SECONDS,
    steps=st.tuples(SECONDS, SECONDS, SECONDS),
    cancel=st.booleans(),
    in_a_task=st.booleans(),
)
@example(deadline=2, floor=0, steps=(2, 0, 0), cancel=True, in_a_task=True)
def test_a_handler_is_cut_off_before_its_response_begins_or_not_at_all(deadline, floor, steps, cancel, in_a_task):
    """Either the answer is 504 and the handler was cut off, at the deadline; or it did all its work.

    The handler works until it begins its response, until that is complete, and afterwards, which may be in a task.
    """
    sent, done = [], []
    before, between, after = steps

    async def work(scope, receive, send):
        here = clock.current()
        try:
            await here.asleep(before)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await here.asleep(between)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            done.append(abate.remaining())
            await here.asleep(after)
            done.append("all")
        except asyncio.CancelledError:
            done.append(here.now())
            raise

    async def app(scope, receive, send):
        if in_a_task:
            async with asyncio.TaskGroup() as group:
                group.create_task(work(scope, receive, send))
        else:
            await work(scope, receive, send)

    async def send(message):
        sent.append(message.get("status"))

    async def main():
        headers = [(b"abate-deadline", str(deadline * 1000).encode())]
        middleware = Middleware(app, trusted=everybody, min_deadline=floor, cancel=cancel)
        await middleware({"type": "http", "headers": headers}, None, send)

    with VirtualClock():
        asyncio.run(main())
    bound = max(deadline, floor)
    if sent[0] == 504:
        assert cancel
        assert before >= bound
        assert done in ([float(bound)], [None, float(bound)])
    else:
        assert not cancel or before <= bound
        assert done == [None, "all"]
    assert len(sent) == 2


def served(app, *, seconds=1, run=lambda main: asyncio.run(main()), **settings):
    """The statuses that answer a trusted caller's request with the given seconds left, in virtual time."""
    sent = []

    async def send(message):
        if message["type"] == "http.response.start":
            sent.append(message["status"])

    async def main():
        headers = [(b"abate-deadline", str(seconds * 1000).encode())]
        await Middleware(app, trusted=everybody, **settings)({"type": "http", "headers": headers}, None, send)

    with VirtualClock():
        run(main)
    return sent


def answer(send, status=200):
    """Begin a response."""
    return send({"type": "http.response.start", "status": status, "headers": []})


@pytest.mark.parametrize("run", [lambda main: asyncio.run(main()), trio.run], ids=["asyncio", "trio"])
def test_both_event_loops_cut_off_and_let_go(run):
    """Before its response has begun, a handler is cut off; after that, it is not."""
    done = []

    async def late(scope, receive, send):
        await clock.current().asleep(5.0)
        await answer(send)

    async def begun(scope, receive, send):
        await answer(send)
        await clock.current().asleep(5.0)
        done.append("all")

    assert served(late, run=run, cancel=True) == [504]
    assert served(begun, run=run, cancel=True) == [200]
    assert done == ["all"]


@pytest.mark.parametrize("status", [None, 200, 503])
def test_a_handler_that_goes_on_after_it_was_cut_off_is_answered_for(status):
    """The answer is 504, whether the handler returns without one or sends one of its own."""

    async def app(scope, receive, send):
        with suppress(asyncio.CancelledError):
            await clock.current().asleep(5.0)
        if status is not None:
            await answer(send, status)
            await send({"type": "http.response.body", "body": b"late"})

    assert served(app, cancel=True) == [504]


@pytest.mark.parametrize("cancel", [False, True])
def test_a_timeout_of_the_applications_own_stays_its_own(cancel):
    """An attempt that was cut off in time is an error of the application's; past the caller's deadline it means 504."""

    async def own(scope, receive, send):
        await abate.Policy(on=OSError, max_attempts=1, attempt_timeout=0.5).acall(clock.current().asleep, 60.0)

    async def callers(scope, receive, send):
        await abate.Policy(on=OSError, max_attempts=1, timeout=60.0).acall(clock.current().asleep, 60.0)

    async def begun(scope, receive, send):
        await answer(send)
        await callers(scope, receive, send)

    with pytest.raises(abate.AttemptTimeout):
        served(own, cancel=cancel)
    assert served(callers, cancel=cancel) == [504]
    with pytest.raises(abate.AttemptTimeout):
        served(begun, cancel=cancel)


def test_a_file_that_is_sent_whole_ends_the_deadline():
    """Servers may be given the path of a body instead of the body."""
    left = []

    async def app(scope, receive, send):
        await answer(send)
        left.append(abate.remaining())
        await send({"type": "http.response.pathsend", "path": "/dev/null"})
        left.append(abate.remaining())

    assert served(app) == [200]
    assert left == [1.0, None]


def test_the_word_that_retrying_is_of_no_use_is_said_once():
    """Also where the application has copied it from an upstream's response."""

    def gives_up():
        with pytest.raises(OSError):
            abate.Policy(on=OSError, max_attempts=2, backoff=[0.0]).call(abate.testing.Script(OSError(), OSError()))

    heads = []

    async def app(scope, receive, send):
        gives_up()
        await send({"type": "http.response.start", "status": 503, "headers": [(b"Abate-Exhausted", b"1")]})

    async def send(message):
        heads.append([(name.decode().lower(), value.decode()) for name, value in message["headers"]])

    def wsgi(environ, start_response):
        gives_up()
        start_response("503 Service Unavailable", [("abate-exhausted", "1")])
        return []

    asyncio.run(Middleware(app)({"type": "http", "headers": []}, None, send))
    body = WsgiMiddleware(wsgi)({}, lambda _, headers: heads.append([(name.lower(), value) for name, value in headers]))
    body.close()
    assert heads == [[("abate-exhausted", "1")]] * 2
