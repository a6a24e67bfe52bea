"""`abate sim`: what it refuses, before anything is run."""

import sys

import pytest

from tests.cli.sim.scenarios import OUTAGE


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nowhere"], ["'nowhere'", "herd"]),
        (["nowhere.toml"], ["'nowhere.toml'"]),
        (["."], ["'.'"]),
        (["bytes.toml"], ["bytes.toml", "not TOML"]),
        (["outage.toml", "--policy", "bytes.toml:orders"], ["bytes.toml", "not TOML"]),
        (["--compare", "outage.toml", "nowhere"], ["'nowhere'"]),
        (["outage.toml", "--engine", "steam"], ["--engine", "'steam'", "exact"]),
        (["outage.toml", "--seeds", "0"], ["--seeds", "0"]),
        (["outage.toml", "--clients", "0"], ["--clients", "0"]),
        (["outage.toml", "--jobs", "-1"], ["--jobs", "-1"]),
        (
            ["outage.toml", "--set", "policy.attempt=6"],
            ["outage.toml: --set policy.attempt=6: [policy] has an unknown key 'attempt'"],
        ),
        (
            ["outage.toml", "--set", "run.seeds=2", "--set", "policy.max_attempts=0"],
            ["outage.toml: --set policy.max_attempts=0: [policy]: max_attempts", "0"],
        ),
        (["outage.toml", "--clients", "200000000"], ["outage.toml: --clients 200000000: [clients]: count must be"]),
        (["outage.toml", "--set", "polcy.attempts=6"], ["outage.toml", "'polcy'"]),
        (["outage.toml", "--set", "services.api.workers=0"], ["outage.toml", "[services.api]", "workers", "0"]),
        (["outage.toml", "--set", "services.db.workers=1"], ["outage.toml", "services.db.workers", "api", "'db'"]),
        (["outage.toml", "--set", "policy.max_attempts"], ["--set", "'policy.max_attempts'"]),
        (["outage.toml", "--set", "run.horizon=3"], ["outage.toml", "[[triggers]]", "at must", "5", "3"]),
        (["outage.toml", "--measures", "speed"], ["--measures", "outage.toml", "'speed'", "amplification"]),
        (["outage.toml", "--policy", "app.toml"], ["'app.toml'", "app.toml:orders"]),
        (["outage.toml", "--policy", "app.toml:cats"], ["app.toml", "'cats'", "orders"]),
        (["outage.toml", "--policy", "gone.toml:orders"], ["gone.toml"]),
        (["outage.toml", "--report", "no/such/out.html"], ["--report", "no/such"]),
        (["outage.toml", "--picture", "no/such/out.png"], ["--picture", "no/such"]),
        (["outage.toml", "--picture", "out.gif"], ["--picture", "'out.gif'", ".png", ".svg"]),
        (["outage.toml", "--report", "."], ["--report", "folder"]),
    ],
    ids=lambda given: " ".join(given),
)
def test_wrong_input_is_one_line(sim, words, named):
    """It names what is wrong, and nothing has been run."""
    code, out, err = sim(*words)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    for word in named:
        assert word in err


@pytest.mark.parametrize("words", [["own.toml"], ["tune", "own.toml"]], ids=" ".join)
def test_an_engine_that_cannot_run_code_is_refused_with_the_file(sim, folder, words):
    """In every command that asks for it."""
    (folder / "own.toml").write_text(OUTAGE.replace("count = 50", 'count = 50\ncode = "asyncio:sleep"'))
    code, out, err = sim(*words, "--engine", "fleet", "--code", "asyncio")
    assert (code, out) == (2, "")
    assert err == "abate: own.toml: [clients]: code can be run by the engine 'coroutine' only, not by 'fleet'\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--seeds", "3"],
        ["--compare", "outage.toml"],
        ["--compare", "outage.toml", "once.toml", "--report", "out.html"],
        ["outage.toml", "--seeds", "many"],
        ["outage.toml", "--nonsense"],
    ],
    ids=" ".join,
)
def test_a_wrong_use_is_refused(sim, words):
    """The usage is printed, and what is wrong with it."""
    code, out, err = sim(*words)
    assert (code, out) == (2, "")
    assert "usage: abate sim" in err


def test_without_words_the_help_is_printed(sim):
    """`abate sim` alone says what there is."""
    code, out, _ = sim()
    assert code == 0
    assert all(word in out for word in ("list", "show", "tune", "--compare"))


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("numpy", ["--engine", "fleet"]),
        ("numpy", ["--set", "run.engine=fleet"]),
        ("matplotlib", ["--report", "out.html"]),
        ("matplotlib", ["--picture", "out.png"]),
    ],
    ids=" ".join,
)
def test_a_library_that_is_not_installed_is_named(sim, monkeypatch, missing, words):
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, missing, None)
    code, out, err = sim("outage.toml", *words)
    assert (code, out) == (2, "")
    assert "pip install 'abate[sim]'" in err
    assert len(err.splitlines()) == 1
