"""HTTP over real sockets for live runs: heads, connections that are kept, and those that are cut off."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from abate.sim.live.wire import Answering, Head, Pool, Wire, read, written

HANG = 30.0

heads = st.lists(st.sampled_from(["GET /a HTTP/1.1", "PUT /b HTTP/1.1"]), max_size=5)


@given(heads, st.lists(st.integers(0, 200)))
def test_heads_come_whole_however_they_are_cut(firsts: list[str], cuts: list[int]) -> None:
    """What a socket delivers in pieces is put together again."""
    came: list[Head] = []
    wire = Answering(lambda _, head: came.append(head), lambda _: None)
    stream = b"".join(written(first, {"X-Number": str(place)}) for place, first in enumerate(firsts))
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    for start, end in pairwise(edges):
        wire.data_received(stream[start:end])
    assert [(" ".join(head.words), head.headers) for head in came] == [
        (first, {"x-number": str(place)}) for place, first in enumerate(firsts)
    ]


def test_a_head_without_end_is_cut_off() -> None:
    """Nobody fills the memory of a service, or of a client."""

    async def flood() -> None:
        loop = asyncio.get_running_loop()
        gone = loop.create_future()
        server = await loop.create_server(
            lambda: Answering(lambda wire, head: None, lambda wire: gone.set_result(None)), "127.0.0.1", 0
        )
        async with server, asyncio.timeout(HANG):
            transport, _ = await loop.create_connection(Wire, *server.sockets[0].getsockname())
            transport.write(b"x" * 10_000)
            await gone
            transport.close()

    asyncio.run(flood())


def test_connections_are_used_again() -> None:
    """One after the other, a hundred requests need one connection; an answer that nobody awaits closes it."""

    async def ask() -> int:
        loop = asyncio.get_running_loop()
        wires: list[Answering] = []

        def connected() -> Answering:
            wires.append(Answering(lambda wire, head: wire.answer(204, {"Echo": head.words[1]}), lambda wire: None))
            return wires[-1]

        server = await loop.create_server(connected, "127.0.0.1", 0)
        async with server, asyncio.timeout(HANG):
            pool = Pool(server.sockets[0].getsockname()[1])
            for number in range(100):
                head = await pool.ask(f"GET /{number} HTTP/1.1", {})
                assert head.headers["echo"] == f"/{number}"
            used = len(wires)
            wires[0].answer(200, {})
            while wires[0].transport is not None:
                await asyncio.sleep(0.001)
            await pool.ask("GET /again HTTP/1.1", {})
            pool.close()
            await asyncio.sleep(0)
        assert len(wires) == used + 1
        return used

    assert asyncio.run(ask()) == 1


def test_an_answer_is_read_as_it_was_written() -> None:
    """Names of headers in small letters, values as they are."""
    assert read(written("HTTP/1.1 503 Service Unavailable", {"Retry-After": "2"})[:-4]) == Head(
        ("HTTP/1.1", "503", "Service", "Unavailable"), {"retry-after": "2"}
    )
