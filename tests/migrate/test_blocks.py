"""Blocks and calls of objects that retry."""

import textwrap

import pytest

from tests.migrate.rewriting import reason, rewritten, run

HEAD = "import asyncio\n\nimport tenacity\n\n\n"


def target(body, line="def target():"):
    return f"{HEAD}{line}\n{textwrap.indent(textwrap.dedent(body), '    ')}"


@pytest.mark.parametrize("outcomes", [[ValueError("always")], [ValueError("once"), "fine"], ["fine"]])
@pytest.mark.parametrize(
    "body",
    [
        """\
        for attempt in tenacity.Retrying(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_fixed(1)):
            with attempt:
                return step(), attempt.retry_state.attempt_number
        """,
        """\
        again = tenacity.Retrying(stop=tenacity.stop_after_attempt(3), reraise=True)
        return again(step)
        """,
        """\
        again = tenacity.Retrying(stop=tenacity.stop_after_attempt(3), reraise=True)
        wrapped = again.wraps(step)
        for attempt in again:
            with attempt:
                pass
        return wrapped()
        """,
        """\
        return tenacity.Retrying(stop=tenacity.stop_after_attempt(2)).wraps(step)()
        """,
    ],
)
def test_blocks_and_calls_do_the_same(body, outcomes):
    """The same attempts, waits and end."""
    code = target(body)
    new = rewritten(code)
    assert "tenacity" not in new
    assert run(new, outcomes) == run(code, outcomes)


@pytest.mark.parametrize("outcomes", [[None], [None, "there"], [ValueError("always")]])
def test_the_result_of_a_block(outcomes):
    """It is set within the `with` instead of after it."""
    code = target(
        """\
        retry = tenacity.retry_if_result(lambda found: found is None)
        for attempt in tenacity.Retrying(stop=tenacity.stop_after_attempt(3), retry=retry):
            with attempt:
                found = step()
            if not attempt.retry_state.outcome.failed:
                attempt.retry_state.set_result(found)
        return found
        """
    )
    new = rewritten(code)
    assert "        found = step()\n            attempt.result = found\n" in new
    assert run(new, outcomes) == run(code, outcomes)


def test_asynchronous_blocks_and_calls():
    """`async for`, with a plain `with`; and `acall`."""
    code = HEAD + textwrap.dedent(
        """\
        async def attempt_it():
            return step()


        async def both():
            async for attempt in tenacity.AsyncRetrying(stop=tenacity.stop_after_attempt(3), reraise=True):
                async with attempt:
                    await attempt_it()
            return await tenacity.AsyncRetrying(stop=tenacity.stop_after_attempt(3), reraise=True)(attempt_it)


        def target():
            return asyncio.run(both())
        """
    )
    new = rewritten(code)
    assert "        with attempt:\n" in new
    assert ".acall(attempt_it)" in new
    for outcomes in ([ValueError("once"), "fine"], [ValueError("always")]):
        assert run(new, outcomes).attempts == run(code, outcomes).attempts
        assert run(new, outcomes).end == run(code, outcomes).end


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return tenacity.Retrying()", "can't be followed"),
        ("again = tenacity.Retrying()\nagain(step)\nreturn again.statistics", "the use of again on line 9"),
        ("for attempt in tenacity.Retrying():\n    attempt.begin()", "does not enter attempt"),
        ("for a in tenacity.Retrying():\n    with a:\n        print(a.retry_state.fn)", "has no equivalent"),
        (
            "for a in tenacity.Retrying(retry=tenacity.retry_if_result(bool)):\n    with a:\n        step()",
            "not told its result",
        ),
    ],
)
def test_uses_that_cannot_be_followed_are_left(body, why):
    """The site stays as it is."""
    assert why in reason(target(body))
