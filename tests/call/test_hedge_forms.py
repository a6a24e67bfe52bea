"""The ways into a hedge: what it decorates and calls, and what it refuses."""

import asyncio

import pytest
import trio

from abate import Policy
from abate.call.hedge import Hedge
from abate.schedule.timeouts import Timeouts
from abate.testing import Script


def make(policy=None):
    return Hedge(policy or Policy(on=OSError, max_attempts=1), Timeouts())


@pytest.mark.parametrize("run", [lambda main: asyncio.run(main()), trio.run], ids=["asyncio", "trio"])
def test_it_decorates_functions_methods_and_coroutine_functions(run):
    """Names, signatures and kinds are kept."""
    hedge = make(Policy(on=OSError, max_attempts=2, backoff=[0.0]))
    failing = Script(OSError(), "fine")

    class Orders:
        @hedge
        def load(self, order: int, *, depth: int = 1) -> tuple[int, int]:
            """Load it."""
            return order, depth

        @hedge
        @staticmethod
        def plain(order):
            return order

        @hedge
        @classmethod
        def named(cls, order):
            return cls.__name__, order

        @hedge
        async def fetch(self, order):
            return await failing.acall()

    orders = Orders()
    assert orders.load(7, depth=2) == (7, 2)
    assert (Orders.load.__name__, Orders.load.__doc__) == ("load", "Load it.")
    assert (orders.plain(1), orders.named(2)) == (1, ("Orders", 2))

    async def main():
        assert await orders.fetch(1) == "fine"

    run(main)


def test_what_cannot_be_called_again_is_refused():
    """A generator function cannot be decorated, nor a coroutine be called; a coroutine function wants acall."""
    hedge = make()

    def generate():
        yield 1

    async def work():
        return 1

    with pytest.raises(TypeError, match="generator"):
        hedge(generate)
    with pytest.raises(TypeError, match="takes the function, then its arguments"):
        hedge.call(work())
    with pytest.raises(TypeError, match="takes the function, then its arguments"):
        asyncio.run(hedge.acall(7))
    with pytest.raises(TypeError, match="use acall"):
        hedge.call(work)


def test_what_is_not_safe_to_repeat_is_not_hedged():
    """A policy that says so is refused."""
    with pytest.raises(ValueError, match="idempotent=False"):
        Hedge(Policy(on=OSError, idempotent=False), Timeouts())
    Hedge(Policy(on=OSError, idempotent=True), Timeouts())


@pytest.mark.parametrize(
    ("arguments", "settings", "error", "message"),
    [
        ((7, Timeouts()), {}, TypeError, "policy must be a Policy, not 7"),
        ((Policy(on=OSError), 7), {}, TypeError, "timeouts must be Timeouts, not 7"),
        (
            (Policy(on=OSError), Timeouts()),
            {"quantile": 1.0},
            ValueError,
            "above 0 and below 1, not 1.0",
        ),
        ((Policy(on=OSError), Timeouts()), {"quantile": 0.0}, ValueError, "quantile must be a number above 0, not 0.0"),
    ],
)
def test_arguments_that_cannot_be_are_named(arguments, settings, error, message):
    """At construction."""
    with pytest.raises(error, match=message):
        Hedge(*arguments, **settings)


def test_it_shows_its_parts():
    """Policy, timeouts and quantile."""
    assert repr(make()).startswith("Hedge(Policy(on=(OSError,)")
    assert repr(make()).endswith("quantile=0.95)")
