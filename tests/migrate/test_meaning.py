"""Names keep their meaning in the new code, and what else uses a rewritten function keeps working."""

import textwrap

import pytest

from tests.migrate.rewriting import migrated, reason, rewritten, run

HEAD = "import tenacity\n\n\n"
THREE = "stop=tenacity.stop_after_attempt(3), reraise=True"
GROWING = "stop=tenacity.stop_after_attempt(4), reraise=True, wait=tenacity.wait_incrementing(start={0}, increment={0})"
FAILING = [ValueError("a"), ValueError("b"), ValueError("c"), ValueError("d"), "fine"]


def same(code, call="target()", outcomes=FAILING):
    """Compare the runs of both versions of a file that is rewritten."""
    code = textwrap.dedent(code)
    new = rewritten(code)
    assert run(new, outcomes, call) == run(code, outcomes, call), new
    return new


@pytest.mark.parametrize(
    ("code", "call"),
    [
        (
            f"class A:\n    step = 2\n    @tenacity.retry({GROWING.format('step')})\n    def f(self): return step()\n",
            "A().f()",
        ),
        (f"fs = []\nfor n in (1, 5):\n    fs.append(tenacity.retry({GROWING.format('n')})(step))\n", "fs[0]()"),
        (f"n = 3\n@tenacity.retry({GROWING.format('n')})\ndef target(): return step()\nn = 5\n", "target()"),
        (f"retry = 3\n@tenacity.retry({GROWING.format('retry')})\ndef target(): return step()\n", "target()"),
    ],
    ids=["in a class", "in a loop", "assigned again", "the parameter's name"],
)
def test_waits_are_computed_from_numbers_as_they_were(code, call):
    """A function of the retry's number reads them once, where the policy is made."""
    same(f"import tenacity\n{code}", call)


def test_a_strategy_is_not_read_where_its_names_mean_something_else():
    """A parameter of the same name, and a name that is assigned again."""
    head = f"{HEAD}LIMIT = 3\nSTOP = tenacity.stop_after_attempt(LIMIT)\n"
    assert "STOP" in reason(f"{head}def f(LIMIT):\n    return tenacity.Retrying(stop=STOP, reraise=True)(step)\n")
    assert "STOP" in reason(f"{head}LIMIT = 5\n\n\n@tenacity.retry(stop=STOP)\ndef target(): ...\n")


@pytest.mark.parametrize(
    "condition",
    [
        "tenacity.retry_if_exception_message(message=error)",
        "tenacity.retry_if_exception_type(error) & tenacity.retry_if_exception(bool)",
        "tenacity.retry_if_exception_type(error) & tenacity.retry_if_exception_type(OSError)",
        "tenacity.retry_if_exception_type((error, OSError)) | tenacity.retry_if_exception_type(error)",
        "tenacity.retry_if_not_result(error)",
    ],
)
def test_a_condition_that_would_capture_a_name_is_left(condition):
    """The new function has a parameter of that name."""
    code = f"{HEAD}def make(error):\n    return tenacity.retry({THREE}, retry={condition})(step)\n"
    assert "may mean something else" in reason(code)


@pytest.mark.parametrize("binding", ["def re(): ...", "from os import path as re", "re = 3"])
def test_a_module_of_which_the_name_is_taken_is_not_imported(binding):
    """The condition on the message would use it."""
    site = f"@tenacity.retry({THREE}, retry=tenacity.retry_if_exception_message(match='a'))\ndef f(): ...\n"
    assert "re means something else" in reason(f"import tenacity\n\n{binding}\n\n\n{site}")


@pytest.mark.parametrize(
    "code",
    [
        f"tenacity.retry({THREE})(gen)",
        "tenacity.retry(gen)",
        f"tenacity.Retrying({THREE})(gen)",
        f"tenacity.Retrying({THREE}).wraps(gen)",
    ],
)
def test_generator_functions_are_left_however_they_are_wrapped(code):
    """tenacity never retries them."""
    assert "generator" in reason(f"{HEAD}def gen():\n    yield step()\n\n\ntarget = {code}\n")


def test_coroutine_functions_that_are_never_retried_are_left():
    """A `Retrying` calls them, and nothing more."""
    code = f"{HEAD}async def load(): ...\n\n\nx = tenacity.Retrying({THREE})(load)\n"
    assert "never retried" in reason(code)
    assert "never retried" in reason(f"{HEAD}@tenacity.Retrying({THREE}).wraps\nasync def load(): ...\n")


def test_an_attempt_that_is_used_after_its_loop():
    """It is the last one; of two loops it can't be told which."""
    loop = f"    for attempt in tenacity.Retrying({THREE}):\n        with attempt:\n            found = step()\n"
    end = "    return found, attempt.retry_state.attempt_number\n"
    same(f"import tenacity\n\n\ndef target():\n{loop}{end}", outcomes=[ValueError("a"), "fine"])
    result = migrated(f"import tenacity\n\n\ndef target():\n{loop}{loop}{end}")
    assert all("several loops" in site.reason for site in result.sites)


CALLBACK = f"{HEAD}def note(state):\n    print(state.attempt_number)\n\n\n"
NOTED = f"@tenacity.retry({THREE}, before_sleep=note)\ndef target(): ...\n"


def test_a_callback_that_a_left_site_uses_too_is_left():
    """It would get what it does not know."""
    result = migrated(f"{CALLBACK}{NOTED}\n\n@tenacity.retry(before_sleep=note, **more)\ndef other(): ...\n")
    assert not result.changed
    assert "stays as it is" in result.sites[0].reason


@pytest.mark.parametrize("use", ["from app import note\n", "import app\n\napp.note(3)\n"])
def test_a_callback_that_another_file_uses_too_is_left(use):
    """It may be called there by something else."""
    assert "another file" in reason(CALLBACK + NOTED, other=use)


def test_an_error_that_other_files_take_from_one_of_the_program_is_left():
    """Their handlers can't be told from others."""
    code = f"{HEAD}@tenacity.retry(stop=tenacity.stop_after_attempt(3))\ndef target(): ...\n"
    errors = "from tenacity import RetryError\n"
    use = "from errors import RetryError\ntry:\n    f()\nexcept RetryError:\n    pass\n"
    assert "other files take RetryError" in migrated(code, errors=errors, use=use).sites[0].reason


@pytest.mark.parametrize("use", ["show(e)", "e.args[0]", "getattr(e, 'last_attempt')", "[e]"])
def test_a_handler_that_passes_the_error_on_is_left(use):
    """What becomes of it can't be followed."""
    code = f"{HEAD}@tenacity.retry\ndef f(): ...\n\n\ntry:\n    f()\nexcept tenacity.RetryError as e:\n    x = {use}\n"
    assert "has no equivalent" in reason(code)


@pytest.mark.parametrize(
    "use", ["str(e)", "f'{e}'", "log.error('no', e)", "raise KeyError(e) from e", "raise e", "e.__cause__"]
)
def test_a_handler_that_shows_or_raises_the_error_is_rewritten(use):
    """As any error can be."""
    code = f"{HEAD}@tenacity.retry\ndef f(): ...\n\n\ntry:\n    f()\nexcept tenacity.RetryError as e:\n    {use}\n"
    assert "except abate.RetryExhausted as e" in rewritten(code)


def test_a_predicate_of_errors_says_that_interruptions_are_not_retried():
    """tenacity asks it about KeyboardInterrupt too."""
    (site,) = migrated(
        f"{HEAD}@tenacity.retry({THREE}, retry=tenacity.retry_if_exception(check))\ndef f(): ...\n"
    ).sites
    assert any("KeyboardInterrupt" in line for line in site.plan.safer)


def test_settings_that_a_policy_refuses_are_left():
    """A wait below zero, and zero tries, which the library backoff never reaches."""
    assert "a wait of -1 s" in reason(f"{HEAD}@tenacity.retry({THREE}, wait=tenacity.wait_fixed(-1))\ndef f(): ...\n")
    never = "import backoff\n\n\n@backoff.on_exception(backoff.constant, OSError, max_tries=0)\ndef f(): ...\n"
    assert "never ends" in reason(never)


@pytest.mark.parametrize(
    "use", ["mock.patch.object(target.retry, 'sleep')", "x = target.retry", "target.retry_with(stop=None)()"]
)
def test_a_function_whose_retrying_object_is_taken_is_left(use):
    """By a test, for one."""
    assert "target" in reason(f"{HEAD}@tenacity.retry({THREE})\ndef target(): ...\n", test_app=f"{use}\n")


CHOSEN = """\
import tenacity


def target(limit=None):
    if limit is None:
        stop = tenacity.{}
    else:
        stop = tenacity.stop_after_attempt(limit)
    return tenacity.Retrying(stop=stop, reraise=True)(step)
"""


@pytest.mark.parametrize("other", ["stop_never", "stop_after_attempt(4)"])
def test_a_limit_that_the_program_chooses(other):
    """The name becomes one of a number; if one of them is endless, it is said, and the budget is unlimited."""
    for call in ("target()", "target(2)"):
        new = same(CHOSEN.format(other), call)
        assert "max_attempts=stop" in new
        assert ("Budget.unlimited()" in new) == (other == "stop_never")


def test_a_chosen_limit_that_is_used_elsewhere_is_left():
    """Or is one of seconds in some cases."""
    code = CHOSEN.format("stop_after_attempt(4)")
    assert "stop=stop" in reason(code.replace("    return", "    print(stop)\n    return"))
    assert "stop=stop" in reason(CHOSEN.format("stop_after_delay(4)"))
