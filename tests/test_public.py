"""The public surface: exported names, what importing costs, examples that run."""

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

import abate

MODULES = sorted(
    module.name for module in pkgutil.walk_packages(abate.__path__, "abate.") if "__main__" not in module.name
)

NAMES = {
    "abate": """
        AbateError Again AsyncWorkQueue AttemptTimeout Backoff Budget DeadlineExceeded Fuse Gate Hedge
        LayeredRetryWarning LeaseLost Outcome PermanentFailure Permits Policy QueueFull Recoverable Refused Report
        RetryExhausted Ruling Shelter ShutDown SilentSuccess StoreError Throttle Timeouts TokenBucket WorkQueue
        carry_deadline clients consistent_jitter consumer controller deadline events http load_policies observe
        on_error on_result open_store remaining report retry retry_on_db_conflict sim testing ticks widen
    """,
    "abate.decide": "Outcome Rule Rules Ruling http on_error on_result widen",
    "abate.schedule": """
        Backoff Jitter Schedule Tick carry_deadline consistent_jitter deadline pushback remaining retry_after schedule
        ticks
    """,
    "abate.admit": "All Budget Gate Permits Shelter Throttle TokenBucket",
    "abate.call": "Attempt Attempts Call Policy Send Stop Wait WorstCase load_policies report",
    "abate.work": """
        Again AsyncWorkQueue Back Bury Done Fuse KeyQueue LeaseLost Message PermanentFailure QueueFull Recoverable
        ShutDown SilentSuccess Source WorkQueue
    """,
    "abate.stores": "DeadLetter Depth Queue Store StoreBudget StoreError StoreUnreachable Terms open_store",
    "abate.observe": """
        Detached LoggingSink OpenTelemetrySink PrometheusSink Sink Snapshot StructlogSink install remove snapshot
    """,
    "abate.observe.page": "app serving",
    "abate.sim": """
        Answer Clients Controllers Duration Estimate Limit Load Result Row Run Scenario Service Study Trigger World
        load_scenario run_study simulated
    """,
    "abate.sim.report": "Hysteresis RecoveryMap hysteresis recovery_map write_picture write_report",
    "abate.testing": "Recorder Script VirtualClock after off",
}


@pytest.mark.parametrize("module", NAMES)
def test_exported_names_are_pinned(module):
    """A name is added to or taken from the public surface on purpose only."""
    assert sorted(importlib.import_module(module).__all__) == sorted(NAMES[module].split())


@pytest.mark.parametrize("module", NAMES)
def test_every_exported_name_is_there_and_explained(module):
    """Each exported class and function has a docstring."""
    for name in importlib.import_module(module).__all__:
        thing = getattr(importlib.import_module(module), name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, name


def test_every_everyday_name_has_an_example():
    """Each class and function of the top level shows its use in its docstring."""
    things = [getattr(abate, name) for name in abate.__all__]
    silent = [
        thing.__name__
        for thing in things
        if (inspect.isclass(thing) or inspect.isfunction(thing)) and ">>>" not in (thing.__doc__ or "")
    ]
    assert silent == ["LayeredRetryWarning"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    """Every example in a docstring does what it says."""
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    assert failed == 0


def fresh(code: str) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_abate_imports_no_event_loop():
    """`import abate` leaves asyncio, trio, logging and the test helpers alone."""
    loaded = fresh(
        "import sys; before = set(sys.modules); import abate;"
        "print(*(set(sys.modules) - before) & {'asyncio', 'trio', 'inspect', 'abate.testing', 'abate.clients'})"
    )
    assert loaded == ""


def test_parts_are_imported_when_asked_for():
    """abate.testing and abate.observe are there without an import of their own; other names are not."""
    assert fresh("import abate; print(abate.testing.VirtualClock.__name__, abate.observe.install.__name__)") == (
        "VirtualClock install"
    )
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = abate.nonsense
