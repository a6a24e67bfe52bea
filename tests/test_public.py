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


def find(name):
    """A public module: ``abate.http`` is one by its everyday name."""
    return abate.http if name == "abate.http" else importlib.import_module(name)


NAMES = {
    "abate": """IdleTimeout RetryContext
        AbateError Again AsyncWorkQueue AttemptTimeout Backoff Budget DeadlineExceeded CircuitBreaker ConcurrencyLimit
        Gate Hedge LayeredRetryWarning LeaseLost Outcome PermanentFailure Policy QueueFull Recoverable Refused Report
        RetryExhausted Ruling Shelter ShutDown SilentSuccess StoreError AdaptiveThrottle Timeouts TokenBucket WorkQueue
        carry_deadline clients consistent_jitter consumer controller deadline events http load_policies observe
        on_error on_result open_store remaining report retry retry_on_db_conflict sim stores testing ticks widen work
    """,
    "abate.events": """
        BreakerOpened BudgetRefused Buried Event FirstFailure GaveUp LayeredRetry LeaseLost Recovered Retry
        ShelterChanged Sink SourceFailed StoreDegraded Waited WorkerCrashed Worked dropped
    """,
    "abate.http": "request judge repeatable status transient transient_result",
    "abate.decide": "Outcome Rule Rules Ruling http on_error on_result widen",
    "abate.schedule": """
        Backoff Jitter Schedule Tick carry_deadline consistent_jitter deadline pushback remaining retry_after schedule
        ticks
    """,
    "abate.admit": "All Budget CircuitBreaker Gate ConcurrencyLimit Shelter AdaptiveThrottle TokenBucket",
    "abate.call": "RetryContext Attempt Attempts Call Policy Send Stop Wait WorstCase load_policies report",
    "abate.work": """
        Again AsyncWorkQueue Back Bury Done KeyQueue LeaseLost Message PermanentFailure QueueFull Recoverable
        ShutDown SilentSuccess Source WorkQueue
    """,
    "abate.stores": "BudgetTerms DeadLetter Depth Queue Store StoreBudget StoreError StoreUnreachable open_store",
    "abate.observe": """
        Detached LoggingSink OpenTelemetrySink PrometheusSink Sink Snapshot StructlogSink
        disable_logging enable_logging install page remove snapshot
    """,
    "abate.observe.page": "app serving",
    "abate.sim": """
        Answer Clients Controllers Duration Estimate Limit Load Result Row Run Scenario Service Study Trigger World
        load_scenario run_study simulated
    """,
    "abate.sim.report": "Hysteresis RecoveryMap hysteresis recovery_map write_picture write_report",
    "abate.testing": "Recorder Script VirtualClock after arun_for off run_for",
    "abate.clients": """
        aiohttp anthropic asgi aws_lambda botocore databases grpc grpc_server httpx httpx2 openai redis requests
        sqlalchemy sqs sse trust urllib3 warm wsgi
    """,
    "abate.clients.aiohttp": "middleware",
    "abate.clients.anthropic": "async_client client default_policy",
    "abate.clients.asgi": "Middleware",
    "abate.clients.aws_lambda": "consumer",
    "abate.clients.botocore": "config transient",
    "abate.clients.databases": "conflict connection_lost retry_on_db_conflict",
    "abate.clients.grpc": "aio_interceptors channel_options interceptors transient",
    "abate.clients.grpc_server": "aio_interceptors attempt interceptors",
    "abate.clients.httpx": "AsyncTransport Transport",
    "abate.clients.httpx2": "AsyncTransport Transport",
    "abate.clients.openai": "async_client client default_policy",
    "abate.clients.redis": "aclient aquiet client quiet transient",
    "abate.clients.requests": "Adapter",
    "abate.clients.sqlalchemy": "transaction",
    "abate.clients.sqs": "Queue",
    "abate.clients.sse": "EventTooLarge NotAnEventStream ServerSentEvent StreamEnded events",
    "abate.clients.trust": "Secret",
    "abate.clients.urllib3": "PoolManager",
    "abate.clients.warm": "awarm awarm_httpx awarm_sqlalchemy warm warm_httpx warm_sqlalchemy",
    "abate.clients.wsgi": "Middleware",
}
PACKAGES = [name for name in NAMES if hasattr(find(name), "__path__")]


@pytest.mark.parametrize("module", NAMES)
def test_exported_names_are_pinned(module):
    """A name is added to or taken from the public surface on purpose only."""
    assert sorted(find(module).__all__) == sorted(NAMES[module].split())


@pytest.mark.parametrize("module", PACKAGES)
def test_a_package_shows_what_is_public_and_nothing_else(module):
    """`dir` of each public package is its `__all__`."""
    assert dir(find(module)) == sorted(NAMES[module].split())


def test_every_package_is_public_or_private():
    """Private are the command line and what it alone uses, and the engines of stores and of the simulator."""
    packages = {module.name for module in pkgutil.walk_packages(abate.__path__, "abate.") if module.ispkg}
    assert packages - set(NAMES) <= {
        "abate.audit",
        "abate.audit.formats",
        "abate.audit.readers",
        "abate.audit.rules",
        "abate.cli",
        "abate.cli.demo",
        "abate.migrate",
        "abate.sim.fleet",
        "abate.stores.fleet",
        "abate.stores.postgres",
        "abate.stores.redis",
        "abate.stores.sqlite",
    }


def test_every_client_has_its_names_pinned():
    """None that `dir(abate.clients)` shows is left out above."""
    assert {f"abate.clients.{name}" for name in abate.clients.__all__} <= set(NAMES)


@pytest.mark.parametrize("module", ["abate", "abate.observe", "abate.clients"])
def test_a_name_that_is_not_there_is_an_error(module):
    """Though some are imported on first use."""
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nonsense'"):
        _ = find(module).nonsense


@pytest.mark.parametrize("module", NAMES)
def test_every_exported_name_is_there_and_explained(module):
    """Each exported class and function has a docstring."""
    for name in find(module).__all__:
        thing = getattr(find(module), name)
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


def test_importing_abate_imports_only_what_every_policy_needs():
    """Shelters, breakers and other gates, streams, TOML files and rules for HTTP are imported on first use."""
    loaded = fresh(
        "import sys, abate; print(*{'json', 'zlib', 'abate.admit.limiter', 'abate.admit.breaker',"
        " 'abate.admit.throttle',"
        " 'abate.admit.bucket', 'abate.admit.concurrency', 'abate.call.stream', 'abate.call.policy_files',"
        " 'abate.decide.http', 'abate.work'} & set(sys.modules))"
    )
    assert loaded == ""


@pytest.mark.parametrize("package", ["abate.admit", "abate.call", "abate.decide"])
def test_a_package_with_parts_on_first_use_knows_its_names_only(package):
    """A name that is not there raises AttributeError, as in any module."""
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Shelterr'"):
        importlib.import_module(package).Shelterr  # noqa: B018


def test_a_shelter_brings_all_that_its_calls_need():
    """No call with a shelter imports a module: a signal handler or finalizer may make it at any point."""
    loaded = fresh(
        "import sys, abate; policy = abate.Policy(on=OSError, shelter=abate.Shelter(), backoff=[0.0], max_attempts=2);"
        "abate.observe.disable_logging(); before = set(sys.modules)\n"
        "try: policy.call(open, '/nowhere/at/all')\n"
        "except OSError: pass\n"
        "print(*{name for name in set(sys.modules) - before if name.startswith('abate')})"
    )
    assert loaded == ""


def test_the_rules_for_http_bring_all_that_their_calls_need():
    """No call with them imports a module: a signal handler may make it at any point, or a child after a fork."""
    loaded = fresh(
        "import sys, abate; policy = abate.Policy(on=abate.http.transient, backoff=[0.0], max_attempts=2)\n"
        'class Refused(Exception): status_code, body = 503, \'{"error": {"type": "overloaded_error"}}\'\n'
        "def fail(): raise Refused\n"
        "abate.observe.disable_logging(); before = set(sys.modules)\n"
        "try: policy.call(fail)\n"
        "except Refused: pass\n"
        "print(*set(sys.modules) - before)"
    )
    assert loaded == ""


def test_parts_are_imported_when_asked_for():
    """abate.testing and abate.observe are there without an import of their own; other names are not."""
    assert fresh("import abate; print(abate.testing.VirtualClock.__name__, abate.observe.install.__name__)") == (
        "VirtualClock install"
    )
