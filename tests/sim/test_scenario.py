"""What is wrong in a scenario: each error names the file, the table and the key, and the variant or sweep."""

import pickle

import pytest

from abate.sim import Scenario, load_scenario, run_study
from abate.sim.world import WorldError

BASE = """
[run]
horizon = 20.0
seeds = 1

[clients]
count = 50

[policy]
max_attempts = 3

[services.api]
workers = 10
"""
TRIGGER = '[[triggers]]\nkind = "stall"\nat = 5.0\nfor = 2.0\n'


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads a scenario out of a text, as f.toml; settings are changed in it afterwards."""
    monkeypatch.chdir(tmp_path)

    def loaded(text, *settings):
        (tmp_path / "f.toml").write_text(text)
        scenario = load_scenario("f.toml", code=["asyncio", "math", "no", "plain_code"])
        for setting in settings:
            scenario = scenario.changed(setting)
        return scenario

    return loaded


def refused(load, text, *settings):
    with pytest.raises(ValueError) as raised:
        load(text, *settings).cases()
    return str(raised.value)


def with_policy(scenario):
    return Scenario(scenario.name, scenario.place, scenario.document, ("app.toml:orders",))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # -- parts that do not fit each other
        (TRIGGER.replace("5.0", "30.0"), "[[triggers]] number 1: at must be before the horizon of 20, not 30.0"),
        (TRIGGER + TRIGGER.replace("5.0", "20.0"), "[[triggers]] number 2: at must be before the horizon of 20"),
        (TRIGGER + 'service = "x"', "[[triggers]] number 1: service 'x' is not a service; there are api"),
        ('calls = ["b"]\n[services.b]\ncalls = "api"', "[services.api]: calls form a cycle: api -> b -> api"),
        ('calls = "zz"', "[services.api]: calls 'zz', which is not a service; there are api"),
        (
            '[services.row]\nkind = "row"\n' + TRIGGER + 'service = "row"',
            "[[triggers]] number 1: kind 'stall' has no meaning for a row, only 'spike' has",
        ),
        # -- in variants
        (
            "[variants.a.policy]\nmax_attempts = 0",
            "[variants.a.policy]: max_attempts must be a whole number of at least 1",
        ),
        ("[variants.a.policy]\nattempt = 1", "[variants.a.policy] has an unknown key 'attempt'"),
        ("[variants.a]\n[variants.b.clients]\ncount = 0", "[variants.b.clients]: count must be a whole number"),
        ('[variants.a.services.api]\ncalls = "x"', "[variants.a.services.api]: calls 'x', which is not a service"),
        (
            TRIGGER + "[variants.a.run]\nhorizon = 4.0",
            "[variants.a]: [[triggers]] number 1: at must be before the horizon of 4, not 5.0",
        ),
        (
            '[[variants.a.triggers]]\nkind = "stall"\nat = 99.0\nfor = 1.0',
            "[[variants.a.triggers]] number 1: at must be before the horizon of 20, not 99.0",
        ),
        ("[variants.a.assert]\nmax_succes = 1", "[variants.a.assert] has an unknown key 'max_succes'"),
        ("error_rate = 2\n[variants.a.services.api]\nworkers = 3", "[services.api]: error_rate must be a number"),
        ("[variants]\na = 3", "[variants.a] must be a table, not 3"),
        (
            "[variants.a.services.apii]\nworkers = 3",
            "[variants.a.services.apii]: 'apii' is never called; called are api",
        ),
        # -- in sweeps
        ('[sweep]\n"clients.count" = [5, 0]', '[sweep] "clients.count" = 0: [clients]: count must be a whole number'),
        (
            '[variants.a]\n[sweep]\n"policy.max_attempts" = [1]\n"run.warmup" = [0, 30]',
            '[sweep] "run.warmup" = 30: [run]: warmup must be less than the horizon of 20, not 30',
        ),
        (
            '[sweep]\n"services.dbb.workers" = [1]',
            "[sweep]: services.dbb.workers must name one of the services api, not 'dbb'",
        ),
        (
            TRIGGER + '[sweep]\n"triggers.1.for" = [1.0]',
            "[sweep]: triggers.1.for must name one of the 1 entries of triggers, from 0 on, not '1'",
        ),
        # -- one table
        (
            'name = "db"',
            "[services.api] has an unknown key 'name'; known are kind, workers, service_time, queue_limit,",
        ),
        (
            '[services.r]\nkind = "row"\nworkers = 1',
            "[services.r] has an unknown key 'workers'; known are kind, network",
        ),
        ("limit = 5", "[services.api] limit must be a table, not 5"),
        (TRIGGER + "x = 1", "[[triggers]] number 1 has an unknown key 'x'; known are kind, at, for, service, share"),
        (TRIGGER + "for_ = 1", "[[triggers]] number 1 has an unknown key 'for_'; known are kind, at, for,"),
        ("[assert]\nmax_blocking.api = 0.5", '[assert] max_blocking.api needs quotes, as it is one key: "max_blocking'),
        (
            '[services.api.policy]\nshelter = "bd"\n[shelters.db]',
            "[services.api.policy]: shelter must be one of 'db', not 'bd'",
        ),
    ],
)
def test_an_error_says_where(load, text, said):
    """The table as it is written in the file."""
    assert refused(load, BASE + text).startswith(f"f.toml: {said}")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("horizon = 20.0", "horizon = 1e15", "[run]: horizon must be at most 1,000,000 s, not 1000000000000000.0"),
        ("count = 50", 'count = 50\ncalls = "zz"', "[clients]: calls 'zz', which is not a service; there are api"),
        ("count = 50", "count = 50\nstart = 20.0", "[clients]: start must be before the horizon of 20, not 20.0"),
        ("[clients]", "[controllers]\nrelist = 99.0", "[controllers]: relist must be before the horizon of 20"),
        (
            "count = 50",
            "count = 50\nrate = 1e300",
            "[clients]: count 50 with a rate of 1e+300 over 20 s is 1e+303 calls",
        ),
        ("\n[run]", "about = 3\n[run]", "about must be a text, not 3"),
        ("count = 50", 'count = 50\ncode = "no:x"', "[clients]: code is 'no:x', but there is no module 'no'"),
        ("count = 50", 'count = 50\ncode = "math:pi"', "[clients]: code is 'math:pi', which must be an async function"),
    ],
)
def test_an_error_in_the_base_says_where(load, old, new, said):
    """So does what stands in the tables before the services."""
    assert refused(load, BASE.replace(old, new)).startswith(f"f.toml: {said}")


def test_code_is_run_by_the_engine_that_can(load):
    """Where the file names no engine; one that can't run it is refused."""
    text = BASE.replace("count = 50", 'count = 50\ncode = "asyncio:sleep"')
    assert [case.engine for case in load(text).cases()] == ["coroutine"]
    said = refused(load, text.replace("seeds = 1", 'engine = "fleet"'))
    assert said == "f.toml: [clients]: code can be run by the engine 'coroutine' only, not by 'fleet'"


def test_code_that_another_engine_is_to_run_is_refused_with_its_file(load):
    """The engine that is given for a study counts as if the file named it."""
    scenario = load(BASE.replace("count = 50", 'count = 50\ncode = "asyncio:sleep"'))
    with pytest.raises(ValueError) as raised:
        run_study(scenario, engine="fleet")
    assert str(raised.value) == "f.toml: [clients]: code can be run by the engine 'coroutine' only, not by 'fleet'"


def test_code_that_is_not_async_is_refused_with_its_file(load, tmp_path, monkeypatch):
    """It is seen when it is called; the error has file, table, key and function, and no address in memory."""
    (tmp_path / "plain_code.py").write_text("def fetch(send):\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = BASE.replace("count = 50", 'count = 50\ncode = "plain_code:fetch"')
    scenario = load(text, "run.horizon=0.3")
    with pytest.raises(ValueError) as raised:
        run_study(scenario)
    assert str(raised.value) == "f.toml: [clients]: code must be an async function; fetch returned 1"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"seeds": 0}, "seeds must be a whole number of at least 1, not 0"),
        ({"seeds": -3}, "seeds must be a whole number of at least 1, not -3"),
        ({"jobs": 0}, "jobs must be a whole number of at least 1, not 0"),
    ],
)
def test_a_study_of_no_runs_is_refused(load, wrong, said):
    """As nothing could be said of it."""
    with pytest.raises(ValueError) as raised:
        run_study(load(BASE), **wrong)
    assert str(raised.value) == said


def test_a_setting_makes_no_service(load):
    """A misspelt name would be a service without callers."""
    said = refused(load, BASE, "services.apii.workers=3")
    assert said == "f.toml: --set: services.apii.workers must name one of the services api, not 'apii'"


def test_a_service_of_one_variant_is_changed_there(load):
    """And is not made in the others."""
    scenario = load(
        BASE + '[variants.one]\n[variants.two.services]\napi.calls = "db"\ndb.workers = 1', "services.db.workers=7"
    )
    one, two = (case.world for case in scenario.cases())
    assert [service.name for service in one.services] == ["api"]
    assert two.service("db").workers == 7


def test_triggers_are_set_by_their_number(load):
    """From 0 on, in the base and in each variant that has its own."""
    own = '[variants.a]\n[[variants.b.triggers]]\nkind = "error"\nat = 1.0\nfor = 1.0\n'
    cases = load(BASE + TRIGGER + own, "triggers.0.for=9").cases()
    assert [case.world.triggers[0].for_ for case in cases] == [9, 9]
    assert [case.world.triggers[0].kind for case in cases] == ["stall", "error"]


@pytest.mark.parametrize("setting", ["triggers.1.for=3", "triggers.x.for=3", "triggers.-1.for=3"])
def test_a_trigger_that_is_none_is_not_set(load, setting):
    """The error says how many there are."""
    assert "must name one of the 1 entries of triggers, from 0 on" in refused(load, BASE + TRIGGER, setting)
    assert "must name one of the 0 entries of triggers, from 0 on" in refused(load, BASE, setting)


def test_the_length_of_a_trigger_is_swept(load):
    """One case per length."""
    cases = load(BASE + TRIGGER + '[sweep]\n"triggers.0.for" = [1.0, 5.0]').cases()
    assert [(case.name, case.world.triggers[0].for_) for case in cases] == [("for=1.0", 1.0), ("for=5.0", 5.0)]


def test_shelters_without_tables_are_as_usual(load):
    """Only where one has a table must all have one: each service may name its own."""
    text = '[services.api.policy]\nshelter = "a"\n[services.db.policy]\nshelter = "b"\n'
    services = load(BASE + text).cases()[0].world.services
    assert [service.policy.shelter.name for service in services] == ["a", "b"]


def test_a_policy_of_ones_own_is_held_to_what_all_are(load, tmp_path):
    """The assertions at the top level; not those of variants."""
    (tmp_path / "app.toml").write_text('[orders]\non = "TimeoutError"\n')
    text = BASE + "[assert]\nmin_success = 0.5\n[variants.a.assert]\nmax_amplification = 2.0\n"
    a, orders = with_policy(load(text)).cases()
    assert (a.variant, set(a.asserted)) == ("a", {"min_success", "max_amplification"})
    assert (orders.variant, set(orders.asserted)) == ("orders", {"min_success"})


def test_an_error_about_ones_own_policy_names_its_file(load, tmp_path):
    """And not the scenario's."""
    (tmp_path / "app.toml").write_text('[orders]\non = "TimeoutError"\nmax_attempts = 0\n')
    with pytest.raises(ValueError, match=r"^app.toml: \[orders\]: max_attempts must be"):
        with_policy(load(BASE)).cases()


def test_a_misfit_can_be_sent_to_another_process():
    """As whatever is raised in one that helps."""
    misfit = pickle.loads(pickle.dumps(WorldError("clients", "calls 'x'")))
    assert (misfit.table, str(misfit)) == ("clients", "clients: calls 'x'")
