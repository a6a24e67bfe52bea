"""What a caller's metadata may do to a gRPC server, with threads and with asyncio, on real sockets."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import grpc
import grpc.aio
import pytest

import abate
from abate.clients.grpc import aio_interceptors as aio_client
from abate.clients.grpc import channel_options, transient
from abate.clients.grpc import interceptors as client
from abate.clients.grpc_server import aio_interceptors, attempt, interceptors
from abate.clients.trust import Secret
from tests.trust.servers import LIMIT

CODES = grpc.StatusCode
SECRET = Secret("only-our-services-know-this")
GIVEN = (("abate-deadline", "5000"), ("abate-attempt", "3"))
LOOPBACK = "127.0.0.0/8"
TOLD, NOT_TOLD = (3, True), (1, False)


def handlers(methods):
    """Handlers of a service by the name of a method; a name that begins with Watch is a stream's."""
    made = {}
    for name, method in methods.items():
        if isinstance(method, grpc.RpcMethodHandler):
            made[name] = method
        elif name.startswith("Watch"):
            made[name] = grpc.unary_stream_rpc_method_handler(method)
        else:
            made[name] = grpc.unary_unary_rpc_method_handler(method)
    return (grpc.method_handlers_generic_handler("shop.Orders", made),)


@contextmanager
def threads_serving(methods, address="127.0.0.1:0", **settings):
    """A server with threads; the value is where to call it."""
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool, handlers=handlers(methods), interceptors=interceptors(**settings))
        port = server.add_insecure_port(address)
        server.start()
        yield address.replace(":0", f":{port}")
        server.stop(None).wait(LIMIT)


@contextmanager
def aio_serving(methods, address="127.0.0.1:0", **settings):
    """A server of grpc.aio, in a thread of its own."""
    started, over, found = threading.Event(), [], []

    async def main():
        stop = asyncio.Event()
        over.append((asyncio.get_running_loop(), stop))
        server = grpc.aio.server(handlers=handlers(methods), interceptors=aio_interceptors(**settings))
        found.append(server.add_insecure_port(address))
        await server.start()
        started.set()
        await stop.wait()
        await server.stop(None)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert started.wait(LIMIT)
    try:
        yield address.replace(":0", f":{found[0]}")
    finally:
        loop, stop = over[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join(LIMIT)


class Shop:
    """A service that remembers what it was told, in every form that a handler may have."""

    def __init__(self):
        self.told = []
        self.seen = []

    def note(self):
        left = abate.remaining()
        self.told.append((attempt(), left is not None and 0.0 < left <= 5.0))

    def look(self, context):
        self.seen.append({key for key, _ in context.invocation_metadata() if key.startswith("abate-")})

    def get(self, request, context):
        self.look(context)
        self.note()
        return b"got"

    def watch(self, request, context):
        self.look(context)
        self.note()
        yield b"one"
        self.note()
        yield b"two"

    async def aget(self, request, context):
        self.look(context)
        self.note()
        return b"got"

    async def awatch(self, request, context):
        self.look(context)
        self.note()
        yield b"one"
        self.note()
        yield b"two"

    async def awritten(self, request, context):
        self.look(context)
        self.note()
        await context.write(b"one")
        self.note()
        await context.write(b"two")


class Threads:
    """A server with threads."""

    serving = staticmethod(threads_serving)

    def methods(self, shop):
        return {"Get": shop.get, "Watch": shop.watch}


class Aio:
    """A server of grpc.aio with coroutines."""

    serving = staticmethod(aio_serving)

    def methods(self, shop):
        return {"Get": shop.aget, "Watch": shop.awatch}


class AioOthers:
    """A server of grpc.aio with plain functions, which it runs in threads, and with a coroutine that writes."""

    serving = staticmethod(aio_serving)

    def methods(self, shop):
        return {"Get": shop.get, "Watch": shop.awritten}


KINDS = pytest.mark.parametrize("kind", [Threads(), Aio(), AioOthers()], ids=["threads", "aio", "aio-others"])


def call(address, *metadata, method="Get", **options):
    """Call a method by a plain channel; the responses, in a list."""
    with grpc.insecure_channel(address, channel_options()) as channel:
        if method.startswith("Watch"):
            return list(channel.unary_stream(f"/shop.Orders/{method}")(b"", metadata=metadata, timeout=LIMIT))
        return [channel.unary_unary(f"/shop.Orders/{method}")(b"", metadata=metadata, timeout=LIMIT)]


def status(address, *metadata, **options):
    """The error that a call ends with."""
    with pytest.raises(grpc.RpcError) as failed:
        call(address, *metadata, **options)
    return failed.value


@KINDS
@pytest.mark.parametrize(
    ("trusted", "extra", "told"),
    [
        (None, (), NOT_TOLD),
        (LOOPBACK, (), TOLD),
        ("10.0.0.0/8", (), NOT_TOLD),
        ("unix", (), NOT_TOLD),
        ([LOOPBACK, "10.0.0.0/8"], (("x-forwarded-for", "10.1.2.3"),), NOT_TOLD),
        (SECRET, (), NOT_TOLD),
        (SECRET, (("abate-secret", SECRET.text),), TOLD),
        (SECRET, (("abate-secret", SECRET.text), ("abate-secret", SECRET.text)), NOT_TOLD),
        (SECRET, (("abate-secret", SECRET.text + "x"),), NOT_TOLD),
        (lambda context: dict(context.invocation_metadata()).get("tenant") == "ours", (("tenant", "ours"),), TOLD),
        (lambda context: dict(context.invocation_metadata()).get("tenant") == "ours", (), NOT_TOLD),
    ],
)
def test_metadata_count_for_trust_only(kind, trusted, extra, told):
    """By network, secret or function, in calls and streams; no caller's by default. Handlers see only what counts."""
    shop = Shop()
    with kind.serving(kind.methods(shop), trusted=trusted) as address:
        assert call(address, *GIVEN, *extra) == [b"got"]
        assert call(address, *GIVEN, *extra, method="Watch") == [b"one", b"two"]
        assert call(address) == [b"got"]
    assert shop.told == [told, told, told, NOT_TOLD]
    seen = {key for key, _ in GIVEN} if told == TOLD else set()
    assert shop.seen == [seen, seen, set()]


@KINDS
def test_a_unix_socket_is_a_network_of_its_own(kind, tmp_path):
    """A caller that is connected by one is believed by "unix" alone."""
    shop = Shop()
    for number, trusted in enumerate(("unix", ["0.0.0.0/0", "::/0"])):
        with kind.serving(kind.methods(shop), f"unix:{tmp_path}/{number}", trusted=trusted) as address:
            call(address, *GIVEN)
    assert shop.told == [TOLD, NOT_TOLD]


@KINDS
def test_a_call_that_comes_too_late_is_not_begun(kind):
    """A trusted caller whose time is over gets DEADLINE_EXCEEDED; a stranger's word is ignored."""
    shop = Shop()
    with kind.serving(kind.methods(shop), trusted=LOOPBACK) as address:
        for method in ("Get", "Watch"):
            assert status(address, ("abate-deadline", "0"), method=method).code() == CODES.DEADLINE_EXCEEDED
    assert shop.told == []
    with kind.serving(kind.methods(shop)) as address:
        assert call(address, ("abate-deadline", "0")) == [b"got"]


def gives_up():
    """A call that a policy has retried and gives up on."""
    abate.Policy(on=OSError, max_attempts=2, backoff=[0.0], budget=abate.Budget.unlimited()).call(
        abate.testing.Script(OSError("down"), OSError("down"))
    )


def hands_on(context, how):
    """Answer with an error after a policy has given up, in one of the ways that handlers have."""
    try:
        gives_up()
    except OSError:
        context.set_trailing_metadata((("shop", "closed"),))
        if how == "raise":
            raise
        if how == "code":
            context.set_code(CODES.UNAVAILABLE)
            return None
        return context.abort(CODES.UNAVAILABLE, "down")


class Status:
    """A status with its own metadata, as `grpc_status` makes them."""

    code, details, trailing_metadata = CODES.UNAVAILABLE, "down", (("shop", "closed"),)


@pytest.mark.parametrize("how", ["raise", "code", "abort", "status"])
@pytest.mark.parametrize("form", ["threads", "stream", "aio", "aio-stream", "aio-threads"])
def test_an_error_says_that_retrying_is_of_no_use(form, how):
    """However it comes about, beside the handler's own metadata; a client with a policy calls once."""
    calls = []

    def get(request, context):
        calls.append(how)
        if how == "status":
            with pytest.raises(OSError):
                gives_up()
            context.abort_with_status(Status)
        hands_on(context, how)
        return b""

    def watch(request, context):
        get(request, context)
        yield from ()

    async def aget(request, context):
        calls.append(how)
        if how == "status":
            with pytest.raises(OSError):
                gives_up()
            await context.abort_with_status(Status)
        abort = hands_on(context, how)
        if abort is not None:
            await abort
        return b""

    async def awatch(request, context):
        await aget(request, context)
        for never in ():
            yield never

    serving = threads_serving if form in ("threads", "stream") else aio_serving
    handler = {"threads": get, "stream": watch, "aio": aget, "aio-stream": awatch, "aio-threads": get}[form]
    method = "Watch" if "stream" in form else "Get"
    with serving({method: handler}) as address:
        failed = status(address, method=method)
        trailing = dict(failed.trailing_metadata())
        assert (trailing.get("abate-exhausted"), trailing.get("shop")) == ("1", "closed")
        policy = abate.Policy(on=transient, max_attempts=3, backoff=[0.0])
        plain = grpc.insecure_channel(address, channel_options())
        with grpc.intercept_channel(plain, *client(policy)) as channel, pytest.raises(grpc.RpcError) as again:
            if method == "Get":
                channel.unary_unary("/shop.Orders/Get")(b"")
            else:
                list(channel.unary_stream("/shop.Orders/Watch")(b""))
    assert abate.report(again.value).attempts == 1
    assert len(calls) == 2


def test_a_call_that_went_well_says_nothing():
    """What a policy gave up on inside was made good by the handler."""

    def get(request, context):
        with pytest.raises(OSError):
            gives_up()
        return b"from the cache"

    with threads_serving({"Get": get}) as address, grpc.insecure_channel(address) as channel:
        answer, done = channel.unary_unary("/shop.Orders/Get").with_call(b"")
    assert (answer, dict(done.trailing_metadata())) == (b"from the cache", {})


class Bank:
    """A handler that debits, waits, and credits."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.done = []

    async def transfer(self, request, context):
        self.done.append("debit")
        await asyncio.sleep(self.seconds)
        self.done.append("credit")
        return b"done"

    async def stream(self, request, context):
        yield b"begun"
        while abate.remaining():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        yield b"done"

    async def written(self, request, context):
        async for message in self.stream(request, context):
            await context.write(message)


@pytest.mark.parametrize("settings", [{}, {"cancel": True}, {"trusted": LOOPBACK}], ids=str)
def test_a_deadline_does_not_cut_a_handler_in_two(settings):
    """Neither a stranger's, whatever the settings, nor by default that of a trusted caller."""
    bank = Bank(0.3)
    with aio_serving({"Get": bank.transfer}, **settings) as address:
        assert call(address, ("abate-deadline", "30")) == [b"done"]
    assert bank.done == ["debit", "credit"]


def test_a_trust_deadline_cuts_off_on_request():
    """With `cancel`, after the floor, a handler that has sent nothing ends with DEADLINE_EXCEEDED."""
    bank = Bank(0.3)
    with aio_serving({"Get": bank.transfer}, trusted=LOOPBACK, cancel=True, min_deadline=0.0) as address:
        assert status(address, ("abate-deadline", "30")).code() == CODES.DEADLINE_EXCEEDED
    assert bank.done == ["debit"]
    with aio_serving({"Get": bank.transfer}, trusted=LOOPBACK, cancel=True, min_deadline=20.0) as address:
        assert call(address, ("abate-deadline", "30")) == [b"done"]


@pytest.mark.parametrize("method", ["stream", "written"])
def test_a_stream_that_has_begun_is_not_cut_off(method):
    """Whether its messages are yielded or written."""
    bank = Bank(0.3)
    with aio_serving({"Watch": getattr(bank, method)}, trusted=LOOPBACK, cancel=True) as address:
        assert call(address, ("abate-deadline", "400"), method="Watch") == [b"begun", b"done"]


def test_a_handler_that_goes_on_after_it_was_cut_off_is_answered_for():
    """What it writes then is not sent: the call ends with DEADLINE_EXCEEDED."""

    async def watch(request, context):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await context.write(b"late")

    with aio_serving({"Watch": watch}, trusted=LOOPBACK, cancel=True) as address:
        failed = status(address, ("abate-deadline", "50"), method="Watch")
    assert failed.code() == CODES.DEADLINE_EXCEEDED


def test_a_timeout_of_the_handlers_own_stays_its_own():
    """An attempt that was cut off in time is an error of the handler's; past the caller's deadline it says so."""

    async def own(request, context):
        await abate.Policy(on=OSError, max_attempts=1, attempt_timeout=0.001).acall(asyncio.sleep, 60.0)

    async def callers(request, context):
        await abate.Policy(on=OSError, max_attempts=1, timeout=60.0).acall(asyncio.sleep, 60.0)

    async def begun(request, context):
        await context.send_initial_metadata(())
        await callers(request, context)

    with aio_serving({"Own": own, "Callers": callers, "Begun": begun}, trusted=LOOPBACK) as address:
        assert status(address, ("abate-deadline", "20000"), method="Own").code() == CODES.UNKNOWN
        assert status(address, ("abate-deadline", "100"), method="Callers").code() == CODES.DEADLINE_EXCEEDED
        assert status(address, ("abate-deadline", "100"), method="Begun").code() == CODES.UNKNOWN


def test_an_abandoned_stream_is_closed_at_once():
    """What its handler holds is given back when the server closes the stream, and not when memory is collected."""
    closed = []

    async def watch(request, context):
        try:
            yield b"one"
            yield b"two"
        finally:
            closed.append(True)

    class Context:
        def invocation_metadata(self):
            return ()

    async def main():
        async def found(details):
            return grpc.unary_stream_rpc_method_handler(watch)

        (interceptor,) = aio_interceptors()
        stream = (await interceptor.intercept_service(found, None)).unary_stream(b"", Context())
        assert await anext(stream) == b"one"
        await stream.aclose()
        assert closed == [True]

    asyncio.run(main())


@KINDS
def test_other_methods_pass(kind):
    """A method that is not there is said to be missing; requests may be streams as well."""

    def put(requests, context):
        return b"".join(requests)

    with kind.serving({"Get": Shop().get}) as address:
        assert status(address, method="Nothing").code() == CODES.UNIMPLEMENTED
    made = grpc.stream_unary_rpc_method_handler(put), grpc.stream_stream_rpc_method_handler(lambda all, _: all)
    with kind.serving({"Put": made[0], "Echo": made[1]}) as address, grpc.insecure_channel(address) as channel:
        assert channel.stream_unary("/shop.Orders/Put")(iter([b"a", b"b"]), timeout=LIMIT) == b"ab"
        echoed = channel.stream_stream("/shop.Orders/Echo")(iter([b"a", b"b"]), timeout=LIMIT)
        assert list(echoed) == [b"a", b"b"]


@pytest.mark.parametrize("serving", [threads_serving, aio_serving], ids=["threads", "aio"])
def test_a_client_with_the_secret_is_believed(serving):
    """The interceptors of both kinds of channels send it, and only if they were given it."""
    told = []

    def get(request, context):
        told.append(abate.remaining() is not None)
        return b""

    policy = abate.Policy(on=transient, max_attempts=1)

    async def aio(address, **settings):
        made = aio_client(policy, **settings)
        async with grpc.aio.insecure_channel(address, channel_options(), interceptors=made) as channel:
            # metadata of a caller's own are not sent in the place of ours
            await channel.unary_unary("/shop.Orders/Get")(b"", metadata=(("abate-secret", SECRET.text),))

    with serving({"Get": get}, trusted=SECRET) as address:
        for settings in ({"secret": SECRET}, {}):
            made = grpc.intercept_channel(grpc.insecure_channel(address), *client(policy, **settings))
            with made as channel, abate.deadline(5.0):
                channel.unary_unary("/shop.Orders/Get")(b"", metadata=(("abate-secret", SECRET.text),))
                asyncio.run(aio(address, **settings))
    assert told == [True, True, False, False]


def test_bad_settings_are_refused():
    """At construction, by name."""
    for make in (interceptors, aio_interceptors):
        with pytest.raises(TypeError, match=r"trusted must be .* not 5"):
            make(trusted=5)
        with pytest.raises(ValueError, match="min_deadline must be a number at least 0"):
            make(min_deadline=-1)
    with pytest.raises(TypeError, match="cancel must be True or False, not 'no'"):
        aio_interceptors(cancel="no")
    for make in (client, aio_client):
        with pytest.raises(TypeError, match="secret must be a Secret, not a str"):
            make(abate.Policy(on=transient), secret=SECRET.text)
