"""Sites of tenacity: what is rewritten, what is said, and what is left as it is."""

import textwrap

import pytest

from tests.migrate.rewriting import migrated, reason, rewritten, run

HEAD = "import tenacity\n\n\n"


def decorated(arguments, function="def target():\n    return step()\n"):
    return f"{HEAD}@tenacity.retry({arguments})\n{function}"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("retry_error_callback=lambda state: 42", "write `except` around the call"),
        ("before=print, stop=tenacity.stop_after_attempt(3)", "before=print has no equivalent"),
        ("after=print, stop=tenacity.stop_after_attempt(3)", "after=print has no equivalent"),
        ("stop=tenacity.stop_all(tenacity.stop_after_attempt(3))", "has no equivalent that can be read"),
        ("stop=lambda state: True", "stop=lambda state: True has no equivalent"),
        ("wait=lambda state: 1", "wait=lambda state: 1 has no equivalent"),
        ("retry=lambda state: True", "retry=lambda state: True has no equivalent"),
        ("retry=tenacity.retry_never", "retries nothing"),
        ("retry=tenacity.retry_if_exception_cause_type(OSError)", "has no equivalent"),
        ("retry=tenacity.retry_if_exception_type(KeyboardInterrupt)", "subclasses of Exception only"),
        ("reraise=REQUIRED", "can't be read without running the code"),
        ("**settings", "can't be read without running the code"),
        ("sleep=nap", "VirtualClock"),
        ("enabled=False", "enabled= has no equivalent"),
        (
            "retry=tenacity.retry_if_result(bool) | tenacity.retry_if_exception_type(OSError), reraise=True,"
            " stop=tenacity.stop_after_attempt(2)",
            "two kinds of errors",
        ),
    ],
)
def test_what_has_no_equivalent_is_left(arguments, why):
    """The file stays as it is, and the reason names what it is about."""
    assert why in reason(decorated(arguments))


def test_functions_that_tenacity_treats_differently_are_left():
    """A generator function, a class, and a function whose statistics are read."""
    stop = "stop=tenacity.stop_after_attempt(2)"
    assert "generator" in reason(decorated(stop, "def target():\n    yield step()\n"))
    assert "class" in reason(decorated(stop, "class Target: ...\n"))
    assert "target" in reason(decorated(stop) + "\n\nprint(target.retry.statistics)\n")
    assert "target" in reason(decorated(stop), test_app="from app import target\ntarget.retry.sleep = print\n")


def test_names_that_mean_something_else_are_left():
    """A fallback for a missing library, another `abate`, a star import."""
    fallback = "try:\n    from tenacity import retry\nexcept ImportError:\n    retry = None\n\n\n@retry\ndef f(): ...\n"
    assert "bound in several ways" in reason(fallback)
    assert "means something else" in reason("abate = 1\n" + decorated("stop=tenacity.stop_after_attempt(2)"))
    assert "star import" in reason("from tenacity import *\n\n\n@retry\ndef f(): ...\n")


def test_strategies_that_have_names():
    """Names that are assigned once stand for what they are assigned."""
    code = "from tenacity import retry, stop_after_attempt, wait_fixed\n\nSTOP = stop_after_attempt(3)\nTIMES = 4\n\n\n"
    new = rewritten(
        code + "@retry(stop=STOP, wait=wait_fixed(TIMES), reraise=True)\ndef target():\n    return step()\n"
    )
    assert "@abate.retry(on=Exception, max_attempts=3, backoff=[TIMES])" in new
    assert run(new, [ValueError("always")]).waits == [4.0, 4.0]


def test_tuples_of_types_that_have_names():
    """Alone they stay as they are; with others, a tuple is unpacked, and what may be one is asked."""
    code = "import tenacity\nfrom other import errors\n\nOWN = (OSError, KeyError)\n\n\n"
    site = "@tenacity.retry(reraise=True, stop=tenacity.stop_after_attempt(2), retry={})\ndef f(): ...\n"
    alone = rewritten(code + site.format("tenacity.retry_if_exception_type(OWN)"))
    assert "on=OWN," in alone
    several = "tenacity.retry_if_exception_type((*OWN, errors, ValueError))"
    assert "on=(*OWN, lambda error: isinstance(error, errors), ValueError)," in rewritten(code + site.format(several))


def test_a_predicate_that_may_return_a_number_is_said():
    """abate would wait as long as it says."""
    for predicate, said in [
        ("lambda e: e.code", True),
        ("lambda e: e.code == 5", False),
        ("check", True),
        ("sure", False),
    ]:
        functions = "def check(error):\n    return 1\n\n\ndef sure(error) -> bool:\n    return True\n\n\n"
        (site,) = migrated(
            f"{HEAD}{functions}@tenacity.retry(stop=tenacity.stop_after_attempt(2),"
            f" retry=tenacity.retry_if_exception({predicate}))\ndef f(): ...\n"
        ).sites
        assert any("seconds to wait" in line for line in site.plan.changed) == said, predicate


def test_try_again_is_retried():
    """It stays tenacity's, and is one of the errors that are retried."""
    code = HEAD + textwrap.dedent(
        """\
        @tenacity.retry(stop=tenacity.stop_after_attempt(3), retry=tenacity.retry_never)
        def target():
            if step() is None:
                raise tenacity.TryAgain
            return "there"
        """
    )
    new = rewritten(code)
    assert "on=tenacity.TryAgain" in new
    for outcomes in ([None, None, 1], [None], [ValueError("once")]):
        before, after = run(code, outcomes), run(new, outcomes)
        assert (before.attempts, before.end[0]) == (after.attempts, after.end[0])


def test_a_function_that_is_wrapped_without_arguments():
    """`retry(f)` becomes a policy around it."""
    new = rewritten(f"{HEAD}def f():\n    return step()\n\n\ntarget = tenacity.retry(f)\n")
    assert run(new, [ValueError("once"), "fine"]).end == ("returned", "fine")


def test_comments_are_kept():
    """Beside the setting that replaces an argument, or above all of them."""
    code = HEAD + textwrap.dedent(
        """\
        class Client:
            @tenacity.retry(  # careful
                # twice is too few
                stop=tenacity.stop_after_attempt(3),
                wait=tenacity.wait_fixed(1),  # a second
                reraise=True,
            )
            def load(self): ...
        """
    )
    assert rewritten(code) == "import abate\n\n\n" + textwrap.dedent(
        """\
        class Client:
            @abate.retry(
                # careful
                # twice is too few
                on=Exception,
                max_attempts=3,
                backoff=[1],  # a second
            )
            def load(self): ...
        """
    )


def test_a_policy_that_is_made_at_each_call_is_said():
    """Its budget bounds one call only."""
    (site,) = migrated(f"{HEAD}def f(g):\n    return tenacity.Retrying(stop=tenacity.stop_after_attempt(2))(g)\n").sites
    assert any("made anew" in line for line in site.plan.advice)


def test_a_site_within_another_one():
    """Both are rewritten, and each is said once."""
    inner = "tenacity.retry(stop=tenacity.stop_after_attempt(2), reraise=True)(step)"
    code = f"{HEAD}target = tenacity.retry(stop=tenacity.stop_after_attempt(2), reraise=True)(lambda: {inner}())\n"
    result = migrated(code)
    assert "tenacity" not in result.after
    assert [site.mapped for site in result.sites] == [True, True]
