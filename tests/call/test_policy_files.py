"""Policies from TOML: every key, both layouts, names of every kind, and errors that say where."""

import concurrent.futures
import json
import os.path
from re import escape

import pytest

import abate
from abate import Backoff, Budget, Policy, load_policies
from abate.testing import Script


@pytest.fixture
def file(tmp_path):
    return tmp_path / "policies.toml"


@pytest.fixture
def load(file):
    """Load policies from this text."""

    def load(text, **options):
        file.write_text(text, encoding="utf-8")
        return load_policies(file, **options)

    return load


# -- what can be written


def test_every_key(load):
    """A table holds what `Policy` takes, and its title is the policy's name."""
    loaded = load("""
        [orders]
        on = ["TimeoutError", "abate.http.transient"]
        unless = "FileNotFoundError"
        max_attempts = 4
        timeout = 30.0
        attempt_timeout = 5
        backoff = { base = 0.1, cap = 5.0, factor = 3, jitter = "equal" }
        budget = { ratio = 0.5, reserve = 2, window = 20.0, funded_by = "request" }
        idempotent = false
        max_hint = 60
        raises = "exhausted"
    """)
    assert loaded == {
        "orders": Policy(
            name="orders",
            on=(TimeoutError, abate.http.transient),
            unless=FileNotFoundError,
            max_attempts=4,
            timeout=30.0,
            attempt_timeout=5.0,
            backoff=Backoff(0.1, 5.0, 3.0, "equal"),
            budget=Budget(0.5, 2.0, 20.0, "request"),
            idempotent=False,
            max_hint=60.0,
            raises="exhausted",
        )
    }


def test_what_is_not_written_is_the_default(load):
    """`on` is all that a policy needs."""
    assert load('[orders]\non = "OSError"') == {"orders": Policy(on=OSError, name="orders")}


def test_a_list_of_seconds_for_backoff(load):
    """The delays may be written out."""
    assert load('[orders]\non = "OSError"\nbackoff = [0.1, 1]')["orders"].backoff.delays == (0.1, 1.0)


@pytest.mark.parametrize("namespace", ["", "policies.", "policy."])
def test_tables_may_stand_below_one_called_policies(load, namespace):
    """Several policies in one file, at the top or within a table of their own."""
    loaded = load(f"""
        [{namespace}orders]
        on = "OSError"
        [{namespace}invoices]
        on = "KeyError"
        [{namespace}invoices.backoff]
        base = 1.0
    """)
    assert loaded == {
        "orders": Policy(on=OSError, name="orders"),
        "invoices": Policy(on=KeyError, name="invoices", backoff=Backoff(1.0)),
    }


def test_both_layouts_in_one_file(load):
    """Tables at the top and below `policies` are all policies."""
    assert list(load('[orders]\non = "OSError"\n[policies.invoices]\non = "OSError"')) == ["orders", "invoices"]


def test_a_policy_may_be_called_policies(load):
    """A table of that name which holds settings is a policy like any other."""
    assert load('[policies]\non = "OSError"')["policies"].name == "policies"


def test_an_empty_file_has_no_policies(load):
    """Nothing in it is wrong."""
    assert load("# none yet") == {}


def test_the_path_may_be_a_string(file, load):
    """Or a path object."""
    load('[orders]\non = "OSError"')
    assert load_policies(str(file)) == load_policies(file)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ConnectionError", ConnectionError),
        ("AttemptTimeout", abate.AttemptTimeout),
        ("abate.AttemptTimeout", abate.AttemptTimeout),
        ("abate.http.transient", abate.http.transient),
        ("abate:http.transient", abate.http.transient),
        ("abate.decide.http.transient", abate.http.transient),
        ("json.JSONDecodeError", json.JSONDecodeError),
        ("json.decoder:JSONDecodeError", json.JSONDecodeError),
        ("concurrent.futures.BrokenExecutor", concurrent.futures.BrokenExecutor),
    ],
)
def test_names(load, name, meant):
    """Built-in exceptions and abate's own by themselves, others with their module, rules like exceptions."""
    assert load(f'[orders]\non = "{name}"') == {"orders": Policy(on=meant, name="orders")}


def test_a_loaded_policy_retries(load):
    """It is a policy like one that was written in Python."""
    orders = load('[orders]\non = ["ConnectionError"]\nbackoff = [0]')["orders"]
    assert orders.call(Script(ConnectionError(), "fine")) == "fine"


def test_a_module_of_the_programs_own(load, tmp_path, monkeypatch):
    """It is imported when the policy is loaded, if the program lists it as code."""
    tmp_path.joinpath("shop_errors.py").write_text("class Busy(Exception): pass")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("shop_errors.Busy", "shop_errors:Busy"):
        (kind,) = load(f'[orders]\non = "{name}"', code=["shop_errors"])["orders"].rules.on
        assert kind.kind.__name__ == "Busy"


# -- what is wrong, and where


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        # keys
        ("attempt = 3", r"\[orders\] has an unknown key 'attempt': did you mean 'max_attempts'\?"),
        ("zeal = 3", r"\[orders\] has an unknown key 'zeal'; known are on, unless, max_attempts, timeout"),
        ("name = 'invoices'", r"\[orders\] has an unknown key 'name'"),
        ("gate = 'door'", r"\[orders\] has an unknown key 'gate'"),
        ("clock = 'wall'", r"\[orders\] has an unknown key 'clock'"),
        (
            "backoff = { bas = 0.1 }",
            r"\[orders\] backoff has an unknown key 'bas': did you mean 'base'\?",
        ),
        ("budget = { rate = 0.1 }", r"\[orders\] budget has an unknown key 'rate': did you mean 'ratio'\?"),
        ("budget = { clock = 'wall' }", r"\[orders\] budget has an unknown key 'clock'"),
        # values
        ("max_attempts = 0", r"\[orders\]: max_attempts must be"),
        ("max_attempts = 2.5", r"\[orders\]: max_attempts must be"),
        ("max_attempts = '3'", r"\[orders\]: max_attempts must be"),
        ("timeout = -1", r"\[orders\]: timeout must be a number above 0, not -1"),
        ("timeout = nan", r"\[orders\]: timeout must be a number above 0, not nan"),
        ("timeout = 1979-05-27", r"\[orders\]: timeout must be a number above 0"),
        ("attempt_timeout = true", r"\[orders\]: attempt_timeout must be"),
        ("max_hint = inf", r"\[orders\]: max_hint must be"),
        ("idempotent = 'yes'", r"\[orders\]: idempotent must be True or False"),
        ("raises = 'both'", r"\[orders\]: raises must be"),
        ("backoff = 0.5", r"\[orders\] backoff must be a table or a list of seconds, not 0.5"),
        ("backoff = 'linear'", r"\[orders\] backoff must be a table or a list of seconds, not 'linear'"),
        ("backoff = []", r"\[orders\]: backoff must be"),
        ("backoff = [1.0, -1.0]", r"\[orders\]: backoff\[1\] must be"),
        ("backoff = { base = -1 }", r"\[orders\] backoff: base must be"),
        ("backoff = { base = 5, cap = 1 }", r"\[orders\] backoff: cap must be"),
        ("backoff = { jitter = 'some' }", r"\[orders\] backoff: jitter must be"),
        ("budget = 0.2", r"\[orders\] budget must be a table, not 0.2"),
        ("budget = { ratio = -0.2 }", r"\[orders\] budget: ratio must be"),
        ("budget = { funded_by = 'hope' }", r"\[orders\] budget: funded_by must be"),
        # names
        ("unless = 'Nonsense'", r"\[orders\] unless names 'Nonsense', which cannot be found"),
        ("unless = 'no_such_module.Error'", r"\[orders\] unless names 'no_such_module.Error', which cannot be found"),
        ("unless = 'json:Nonsense'", r"\[orders\] unless names 'json:Nonsense', which cannot be found"),
        ("unless = 'json.Nonsense'", r"\[orders\] unless names 'json.Nonsense', which cannot be found"),
        ("unless = ['OSError', '..json']", r"\[orders\] unless names '\.\.json', which cannot be found"),
        ("unless = 'json.'", r"\[orders\] unless names 'json\.', which cannot be found"),
        ("unless = ''", r"\[orders\] unless must hold names of exceptions or rules, not ''"),
        ("unless = 5", r"\[orders\] unless must hold names of exceptions or rules, not 5"),
        ("unless = [['OSError']]", r"\[orders\] unless must hold names of exceptions or rules, not \['OSError'\]"),
        ("unless = 'int'", r"\[orders\] unless names 'int', which is neither an exception class nor a rule"),
        ("unless = 'KeyboardInterrupt'", r"\[orders\]: unless must be .*KeyboardInterrupt"),
    ],
)
@pytest.mark.parametrize("namespace", ["", "policies."])
def test_an_error_names_file_table_and_key(load, file, namespace, line, complaint):
    """The error shows the place of the mistake."""
    place = complaint.replace(r"\[orders\]", rf"\[{namespace}orders\]")
    with pytest.raises(ValueError, match=f"^{escape(str(file))}: {place}"):
        load(f"[{namespace}orders]\non = 'OSError'\n{line}")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[orders]\nmax_attempts = 3", r"\[orders\] has no `on`: name the errors to retry"),
        ("[policies.orders]", r"\[policies.orders\] has no `on`"),
        ("[policies]", r"\[policies\] has no `on`"),
        ("[orders]\non = []", r"\[orders\]: on must name at least one"),
        ("[orders]\non = 'Nonsense'", r"\[orders\] on names 'Nonsense', which cannot be found"),
        ("attempts = 3", r"attempts = 3 stands outside a table; expected \[attempts\]"),
        ("[[orders]]\non = 'OSError'", r"orders = \[\{'on': 'OSError'\}\] stands outside a table"),
        ("[policies]\norders = 5", r"\[policies\] has an unknown key 'orders'"),
        (
            "[orders]\non = 'OSError'\n[policies.orders]\non = 'KeyError'",
            r"\[policies.orders\] is the second policy called 'orders'",
        ),
    ],
)
def test_an_error_of_the_whole_table(load, file, text, complaint):
    """What is missing, out of place or there twice is told with its place."""
    with pytest.raises(ValueError, match=f"^{escape(str(file))}: {complaint}"):
        load(text)


def test_a_module_that_fails_to_import(load, file, tmp_path, monkeypatch):
    """Whatever it raises is the cause of an error that names the place."""
    tmp_path.joinpath("shop_broken.py").write_text("raise RuntimeError('no settings')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ValueError, match=rf"^{escape(str(file))}: \[orders\] on names 'shop_broken:Busy'.*no settings"
    ) as caught:
        load("[orders]\non = 'shop_broken:Busy'", code=["shop_broken"])
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_not_toml(load, file):
    """A slip of syntax is told with the file and the line."""
    with pytest.raises(ValueError, match=f"^{escape(str(file))} is not TOML: .*line 2"):
        load("[orders]\non = OSError")


def test_not_utf8(file):
    """TOML is UTF-8."""
    file.write_bytes("[orders]\non = 'é'".encode("latin-1"))
    with pytest.raises(ValueError, match=f"^{escape(str(file))} is not TOML: "):
        load_policies(file)


def test_a_missing_file(file):
    """The error of the file system is raised as it is."""
    with pytest.raises(FileNotFoundError, match=r"policies\.toml"):
        load_policies(file)


# -- shelters


def test_policies_that_name_a_shelter_share_it(load):
    """One shelter per name: with the settings of its table, or the usual ones."""
    loaded = load("""
        [read]
        on = "OSError"
        shelter = "orders"

        [write]
        on = "OSError"
        shelter = "orders"

        [other]
        on = "OSError"
        shelter = "elsewhere"

        [shelters.orders]
        capacity = 50
        patience = 20.0
    """)
    shelter = loaded["read"].shelter
    assert (shelter.name, shelter.capacity, shelter.patience) == ("orders", 50, 20.0)
    assert loaded["write"].shelter is shelter
    assert (loaded["other"].shelter.name, loaded["other"].shelter.capacity) == ("elsewhere", 1000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[a]\non = "OSError"\nshelter = 5', "[a] shelter must be the name of a shelter, not 5"),
        ('[a]\non = "OSError"\nshelter = ""', "[a] shelter must be the name of a shelter, not ''"),
        ("shelters = 5", "shelters = 5 stands outside a table; expected [shelters.NAME]"),
        ("[shelters]\norders = 5", "[shelters.orders] must be a table, not 5"),
        ("[shelters.orders]\nsize = 5", "[shelters.orders] has an unknown key 'size'; known are capacity, patience"),
        ("[shelters.orders]\ncapacity = 0", "[shelters.orders]: capacity must be a whole number of at least 1, not 0"),
    ],
)
def test_bad_shelters_are_named_with_their_place(load, file, text, message):
    """File, table and key, as for policies."""
    with pytest.raises(ValueError, match=escape(message)) as caught:
        load(text)
    assert str(file) in str(caught.value)


def test_a_misspelt_shelter_is_a_mistake(tmp_path):
    """A misspelt name would get a shelter with the default settings."""
    file = tmp_path / "policies.toml"
    file.write_text('[orders]\non = "OSError"\nshelter = "order"\n[shelters.orders]\ncapacity = 5\n')
    with pytest.raises(ValueError, match=r"\[orders\] names a shelter without a table: 'order': did you mean 'orders'"):
        abate.load_policies(file)


def test_attempts_bounded_by_time_and_by_kind(tmp_path):
    """TOML has no null: "none" stands for it."""
    file = tmp_path / "policies.toml"
    file.write_text(
        '[orders]\non = "OSError"\nmax_attempts = "none"\ntimeout = 30.0\nmax_attempts_by_kind = { blip = 3 }\n'
        "backoff = { base = 0.5, minimum = 0.1 }\nidle = 5.0"
    )
    orders = load_policies(file)["orders"]
    assert (orders.max_attempts, orders.max_attempts_by_kind, orders.idle) == (None, {"blip": 3}, 5.0)
    assert orders.backoff == Backoff(0.5, minimum=0.1)


def test_functions_are_named_if_the_program_allows_their_module(tmp_path):
    """Without that a file runs no code."""
    file = tmp_path / "policies.toml"
    file.write_text('[orders]\non = "OSError"\nbefore_retry = "os.path:basename"')
    assert load_policies(file, code=["os"])["orders"].before_retry is os.path.basename
    with pytest.raises(ValueError, match=r"'os.path:basename', whose module the program does not allow"):
        load_policies(file)
    for name, said in (('"os:nothing"', "cannot be found"), ("3", "must be the name of a function, not 3")):
        file.write_text(f'[orders]\non = "OSError"\nbefore_retry = {name}')
        with pytest.raises(ValueError, match=said):
            load_policies(file, code=["os"])
