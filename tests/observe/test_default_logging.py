"""Logging without a sink: what is logged at which level, when it is off, and what it leaves alone."""

import logging
import os
import subprocess
import sys
import threading

import pytest
import structlog

import abate
from abate import event_sinks, events, observe, sim
from abate.testing import Script, VirtualClock

ERROR = OSError("down")
LOGGER = logging.getLogger("abate")


def failing(times, **settings):
    """Make a call whose first attempts fail."""
    settings = {"name": "orders", "on": OSError, "backoff": [0.25], **settings}
    script = Script(*[ERROR] * times, "fine")
    try:
        return abate.Policy(**settings).call(script)
    except OSError:
        return None


def logged(caplog):
    return [(record.levelname, record.getMessage()) for record in caplog.records]


@pytest.fixture
def log(default_log, caplog):
    """Log by default, at INFO, and return what is logged."""
    with VirtualClock(), caplog.at_level(logging.INFO, logger="abate"):
        yield caplog


def test_retries_and_recoveries_are_logged_at_info_and_give_ups_at_warning(log):
    """Nothing is installed."""
    failing(1)
    failing(3)
    assert not event_sinks.installed
    assert logged(log) == [
        ("INFO", "orders: attempt 1 failed (blip), next in 0.25 s: OSError('down')"),
        ("INFO", "orders: succeeded on attempt 2 after 0.25 s of waiting"),
        ("INFO", "orders: attempt 1 failed (blip), next in 0.25 s: OSError('down')"),
        ("INFO", "orders: attempt 2 failed (blip), next in 0.25 s: OSError('down')"),
        ("WARNING", "orders: gave up after 3 attempts and 0.5 s of waiting (attempts): OSError('down')"),
    ]


def test_first_failures_are_logged_at_debug(log):
    """As the retry says the same."""
    with log.at_level(logging.DEBUG, logger="abate"):
        failing(1)
    assert [record.levelname for record in log.records] == ["DEBUG", "INFO", "INFO"]


def test_an_error_that_is_not_retried_is_logged_at_info(log):
    """Programs use exceptions for what is not a failure."""
    with pytest.raises(KeyError):
        abate.Policy(name="orders", on=OSError).call(Script(KeyError("none")))
    assert logged(log) == [("INFO", "orders: gave up after 1 attempt (fatal): KeyError('none')")]


@pytest.mark.parametrize(
    ("settings", "texts"),
    [
        (
            {"budget": abate.Budget(0.0, 0.0)},
            ["orders: budget refused attempt 2", "orders: gave up after 1 attempt (budget): OSError('down')"],
        ),
        ({"max_attempts": 1}, ["orders: gave up after 1 attempt (attempts): OSError('down')"]),
        ({"timeout": 0.1}, ["orders: gave up after 1 attempt (deadline): OSError('down')"]),
    ],
)
def test_warnings_are_logged_while_info_is_off(log, settings, texts):
    """The level is that of the logger."""
    with log.at_level(logging.WARNING, logger="abate"):
        failing(3, **settings)
        failing(1)
    assert logged(log) == [("WARNING", text) for text in texts]


def test_a_call_whose_deadline_has_passed_is_logged(log):
    """It gives up before its first attempt."""
    with abate.deadline(0.0):
        failing(1)
    assert logged(log)[0][1].startswith("orders: gave up after 0 attempts (deadline)")


def test_a_cancelled_call_is_logged_at_info(log):
    """The caller wanted that."""
    with pytest.raises(KeyboardInterrupt):
        abate.Policy(name="orders", on=OSError, timeout=9.0).call(Script(KeyboardInterrupt()))
    assert logged(log) == [("INFO", "orders: gave up after 0 attempts (cancelled): KeyboardInterrupt()")]


def test_a_storm_of_calls_is_a_few_lines(default_log, caplog):
    """A burst, one summary per minute, and a line of the same level when it is over."""
    with VirtualClock() as clock, caplog.at_level(logging.WARNING, logger="abate"):
        for _ in range(1_000):
            failing(3, max_attempts=2, budget=abate.Budget(0.0, 1e6), backoff=[0.0])
            clock.advance(0.01)
        clock.advance(61.0)
        failing(9, max_attempts=2, name="other", backoff=[0.0])
    assert logged(caplog) == [
        *[("WARNING", "orders: gave up after 2 attempts (attempts): OSError('down')")] * 3,
        ("WARNING", "orders: … and 997 more calls gave up (attempts); it is over"),
        ("WARNING", "other: gave up after 2 attempts (attempts): OSError('down')"),
    ]


def test_storms_and_recoveries_of_a_shelter_are_warnings(log):
    """From the first failure until it is calm."""
    policy = abate.Policy(name="orders", on=OSError, shelter=abate.Shelter(name="shop"), max_attempts=50)
    for _ in range(30):
        try:
            policy.call(Script(*[ERROR] * 3, *["fine"] * 50))
        except (OSError, abate.Refused):
            pass
        abate.clock.current().sleep(1.0)
    for _ in range(300):
        policy.call(Script("fine"))
        abate.clock.current().sleep(1.0)
    changes = [record for record in log.records if record.abate["event"] == "shelter"]
    assert {record.levelname for record in changes} == {"WARNING"}
    assert {"storm", "calm"} <= {record.abate.get("state") for record in changes}


def test_a_circuit_breaker_that_opens_is_a_warning(log):
    """That of a policy: consumers log theirs themselves."""
    breaker = abate.CircuitBreaker(0.5, 2, 10.0, 5.0, name="db")
    with log.at_level(logging.WARNING, logger="abate"):
        for _ in range(2):
            failing(1, gate=breaker, max_attempts=1)
    assert [text for _, text in logged(log) if "breaker" in text] == [
        f"db: circuit breaker open for {breaker.seconds_until_half_open():.3g} s: most attempts fail"
    ]


def test_keys_of_a_queue_that_fail_are_warnings(default_log, caplog):
    """And their success is a line at INFO; other work is none."""
    outcomes = Script(ERROR, "fine", "fine")
    controller = abate.controller(name="keys", backoff=[0.0])(lambda key: outcomes() and None)
    with caplog.at_level(logging.INFO, logger="abate"):
        controller.add("a")
        controller.run(drain=True)
        controller.add("b")
        controller.run(drain=True)
    assert [line for line in logged(caplog) if line[1].startswith("keys: 'a'") or line[1].startswith("keys: 'b'")] == [
        ("WARNING", "keys: 'a' has failed: OSError('down')"),
        ("INFO", "keys: 'a' is done after 1 failure"),
    ]


# -- when it is off


def test_one_call_turns_it_off(log):
    """And another one on again."""
    observe.disable_logging()
    failing(3)
    assert logged(log) == []
    observe.enable_logging()
    failing(3)
    assert len(log.records) == 3


@pytest.mark.parametrize(
    "make",
    [
        observe.LoggingSink,
        lambda: observe.LoggingSink("abate", every=True),
        lambda: observe.Detached(observe.LoggingSink()),
        lambda: observe.StructlogSink(structlog.wrap_logger(structlog.ReturnLogger())),
    ],
    ids=["sampled", "every", "detached", "structlog"],
)
def test_a_sink_that_writes_logs_takes_its_place(log, make):
    """Nothing is logged twice; when the sink is removed, logging goes on."""
    sink = observe.install(make())
    failing(3, max_attempts=2)
    observe.remove(sink)
    if isinstance(sink, observe.Detached):
        assert sink.flush(30.0)
    assert [text for _, text in logged(log) if "gave up" in text] == [
        "orders: gave up after 2 attempts and 0.25 s of waiting (attempts): OSError('down')"
    ] * (not isinstance(sink, observe.StructlogSink))
    log.clear()
    failing(3, max_attempts=2)
    assert len(log.records) == 2


def test_other_sinks_and_logging_go_together(log):
    """A sink that counts is not told less, and not more."""
    with abate.testing.Recorder() as seen:
        failing(1)
    assert [type(event).__name__ for event in seen] == ["FirstFailure", "Retry", "Recovered"]
    assert len(log.records) == 2


def test_events_are_not_built_while_the_level_is_off(default_log, monkeypatch):
    """The level is looked up once per call that fails and recovers."""
    asked = []
    monkeypatch.setattr(event_sinks, "log_enabled", lambda level: asked.append(level) or False)
    monkeypatch.setattr(event_sinks, "emit", pytest.fail)
    failing(2)
    failing(0)
    assert asked == [logging.INFO]


# -- what it leaves alone


@pytest.mark.parametrize("setting", ["disabled", "level", "disable"])
def test_configuration_is_the_programs(log, setting, monkeypatch):
    """A logger that is disabled stays so, whatever disabled it."""
    if setting == "disabled":
        monkeypatch.setattr(LOGGER, "disabled", True)
    elif setting == "level":
        LOGGER.setLevel(logging.ERROR)
    else:
        logging.disable(logging.WARNING)
    try:
        failing(3)
    finally:
        logging.disable(logging.NOTSET)
    assert logged(log) == []


def test_the_logger_is_left_as_it_was(log):
    """No handler, no level, no filter."""
    before = LOGGER.level, LOGGER.propagate, list(LOGGER.handlers), list(LOGGER.filters)
    failing(3)
    assert (LOGGER.level, LOGGER.propagate, LOGGER.handlers, LOGGER.filters) == before


def test_a_handler_that_raises_breaks_no_call(default_log, caplog, capsys):
    """Its error is on stderr, as those of the standard library's handlers are."""

    class Broken(logging.Handler):
        def emit(self, record):
            raise RuntimeError("disk full")

    handler = Broken()
    LOGGER.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, logger="abate"):
            assert failing(1) == "fine"
    finally:
        LOGGER.removeHandler(handler)
    assert capsys.readouterr().err.count("RuntimeError: disk full") == 2


def test_what_a_signal_handler_raises_is_not_lost_in_the_log(default_log, monkeypatch):
    """A soft time limit that strikes while an event is logged ends the call, as anywhere else."""

    def interrupted(event):
        raise ValueError("soft time limit")

    monkeypatch.setattr(event_sinks, "default_log", interrupted)
    with pytest.raises(ValueError, match="soft time limit"):
        failing(3)


def test_policies_with_a_clock_of_their_own_are_not_logged(log):
    """They are tests and simulations; sinks get their events."""
    clock = VirtualClock()
    with abate.testing.Recorder() as seen:
        failing(3, clock=clock, budget=abate.Budget(reserve=1e6))
    assert seen.of(events.GaveUp)
    assert logged(log) == []


@pytest.mark.parametrize("engine", ["exact", "coroutine"])
def test_simulated_worlds_are_not_logged(default_log, caplog, engine):
    """Whatever they go through, and although their policies are like those of the program."""
    gate = abate.CircuitBreaker(0.5, 2, 10.0, 5.0)
    policy = abate.Policy(on=sim.simulated, gate=gate, shelter=abate.Shelter(), name="orders")
    down = sim.Trigger("error", at=1.0, for_=5.0)
    world = sim.World(sim.Clients(count=20, rate=1.0), [sim.Service("api")], policy, [down], horizon=10.0)
    with caplog.at_level(logging.INFO, logger="abate"):
        assert world.run(seed=1, engine=engine).failures
    assert caplog.records == []


def test_code_in_a_simulated_world_is_not_logged(default_log, caplog):
    """Although its policies are the program's own."""
    policy = abate.Policy(on=OSError, max_attempts=2, name="orders", backoff=[0.1])
    ended = []

    async def fetch(send):
        await send()
        ended.append(await policy.acall(fail))

    async def fail():
        ended.append("failed")
        raise ERROR

    world = sim.World(sim.Clients(count=2, arrivals="once", code=fetch), [sim.Service("api")], horizon=9.0)
    with caplog.at_level(logging.INFO, logger="abate"):
        world.run(seed=1, engine="coroutine")
    assert ended == ["failed"] * 4
    assert caplog.records == []


def test_each_clock_has_its_own_episodes(default_log, caplog):
    """A storm in virtual time does not silence real time."""
    with caplog.at_level(logging.WARNING, logger="abate"):
        with VirtualClock(start=1e12):
            for _ in range(10):
                failing(3, max_attempts=1)
        failing(3, max_attempts=1)
    assert len(caplog.records) == 4


def test_a_child_counts_for_itself(default_log, caplog, in_child):
    """What the parent has counted is not logged again there."""
    with caplog.at_level(logging.WARNING, logger="abate"), VirtualClock():
        for _ in range(10):
            failing(3, max_attempts=1)

        def child():
            caplog.clear()
            failing(3, max_attempts=1)
            return logged(caplog)

        assert in_child(child) == [("WARNING", "orders: gave up after 1 attempt (attempts): OSError('down')")]


def test_threads_share_the_bounds(log):
    """Many threads at once write no more lines than one."""
    with log.at_level(logging.WARNING, logger="abate"):

        def storm():
            for _ in range(50):
                failing(3, max_attempts=1)

        threads = [threading.Thread(target=storm) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(log.records) <= 4  # threads have no virtual clock: three lines, and perhaps a summary


def run_program(code):
    """Run a program of its own, without this process's logging."""
    program = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=dict(os.environ)
    )
    return program.stdout, program.stderr


def test_logging_is_imported_to_write_only():
    """A retry below the default level imports nothing; a give-up is on stderr, as any library's warning."""
    out, error = run_program(
        "import sys, abate\n"
        "from abate.testing import Script\n"
        "policy = abate.Policy(name='orders', on=OSError, backoff=[0.0])\n"
        "policy.call(Script(OSError('down'), 1))\n"
        "print('logging' in sys.modules, 'abate.observe' in sys.modules)\n"
        "try: policy.call(Script(*[OSError('down')] * 3))\n"
        "except OSError: print('raised')\n"
    )
    assert out.split() == ["False", "False", "raised"]
    assert error == "orders: gave up after 3 attempts (attempts): OSError('down')\n"


def test_a_call_in_the_middle_of_the_import_is_not_broken():
    """A signal handler or a finalizer may make a call while the first event imports the log: its line is lost."""
    out, error = run_program(
        "import sys, abate\n"
        "from abate.testing import Script\n"
        "policy = abate.Policy(name='orders', on=OSError, max_attempts=1)\n"
        "def call(where):\n"
        "    try: policy.call(Script(OSError(where)))\n"
        "    except OSError as error: print(error)\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'abate.observe.logging': call('inner')\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "call('outer')\n"
    )
    assert out.split() == ["inner", "outer"]
    assert error == "orders: gave up after 1 attempt (attempts): OSError('outer')\n"


def test_a_call_in_the_middle_of_the_import_of_logging_is_not_broken():
    """The program's own import may be interrupted as well, by a call or by a worker that logs something itself."""
    out, error = run_program(
        "import sys, abate\n"
        "from abate.logs import Log\n"
        "from abate.testing import Script\n"
        "policy = abate.Policy(name='orders', on=OSError, max_attempts=1)\n"
        "def call(where):\n"
        "    try: policy.call(Script(OSError(where)))\n"
        "    except OSError as error: print(error)\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if 'logging' in sys.modules and sys.meta_path.pop(0): call('inner'); Log('abate').warning('own')\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "for name in ('string', 'traceback'): sys.modules.pop(name, None)\n"
        "import logging\n"
        "call('outer')\n"
    )
    assert out.split() == ["inner", "outer"]
    assert "logging failed on 'own'" in error
    assert error.endswith("\norders: gave up after 1 attempt (attempts): OSError('outer')\n")


def test_a_program_that_configures_logging_sees_retries():
    """Also if it does so after importing abate."""
    out, _ = run_program(
        "import abate, logging, sys\n"
        "from abate.testing import Script\n"
        "logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(levelname)s %(name)s %(message)s')\n"
        "abate.Policy(name='orders', on=OSError, backoff=[0.0]).call(Script(OSError('down'), 1))\n"
    )
    assert out.splitlines() == [
        "INFO abate orders: attempt 1 failed (blip), next in 0 s: OSError('down')",
        "INFO abate orders: succeeded on attempt 2 after 0 s of waiting",
    ]


def test_events_that_are_off_by_level_are_not_counted(default_log, caplog):
    """So the first retries after the level is lowered are lines, and no summary tells of earlier ones."""
    with VirtualClock(), abate.testing.Recorder() as seen:
        with caplog.at_level(logging.WARNING, logger="abate"):
            for _ in range(10):
                failing(1)
            for event in seen:
                default_log(event)
        assert caplog.records == []
        with caplog.at_level(logging.INFO, logger="abate"):
            failing(1)
    assert [record.abate["event"] for record in caplog.records] == ["retry", "recovered"]


def test_a_command_that_prints_its_retries_does_not_log_them():
    """`abate exec` says on stderr what it does, once."""
    words = ["exec", "--max-attempts", "2", "--base", "0.001", "--", sys.executable, "-c", "exit(1)"]
    command = [sys.executable, "-m", "abate", *words]
    program = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert program.returncode == 1
    assert program.stderr.count("gave up") == 1
