"""TOML is configuration, not code: what a file may name, what is imported for it, and how large it may be."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import abate
from abate import load_policies, sim
from abate.call import bounded_toml, named_rules
from abate.call.policy_files import KEYS
from abate.sim.scenario import MAX_CASES
from tests.trust.cost import assert_in_proportion

WORLD = "[clients]\ncount = 3\n[services.api]\n"


@pytest.fixture
def load(tmp_path):
    """Load policies from this text."""

    def load(text, **options):
        file = tmp_path / "policies.toml"
        file.write_text(text, encoding="utf-8")
        return load_policies(file, **options)

    return load


@pytest.fixture
def scenario(tmp_path):
    """Load a scenario from this text."""

    def scenario(text, **options):
        file = tmp_path / "world.toml"
        file.write_text(text, encoding="utf-8")
        return sim.load_scenario(file, **options)

    return scenario


# -- names


@pytest.mark.parametrize(
    "name",
    [
        "os:remove",
        "os.remove",
        "sys:exit",
        "sys.exit",
        "print",
        "eval",
        "exec",
        "builtins:exec",
        "subprocess:run",
        "subprocess.run",
        "abate.load_policies",
        "abate:Policy",
        "abate.http.status",
        "abate.decide.rules:on_error",
        "open",
    ],
)
@pytest.mark.parametrize("key", ["on", "unless"])
def test_a_function_is_refused(load, scenario, name, key):
    """A policy would call it with every error; the message says how to allow it."""
    with pytest.raises(ValueError, match="which is neither an exception class nor a rule"):
        load(f'[orders]\non = "OSError"\n{key} = "{name}"' if key == "unless" else f'[orders]\non = "{name}"')
    with pytest.raises(ValueError, match="which is neither an exception class nor a rule"):
        scenario(f'{WORLD}[policy]\n{key} = "{name}"\n')


def test_a_predicate_needs_its_module_to_be_allowed(load):
    """By `code`, for that module and what is below it; others stay refused."""
    policy = load('[orders]\non = "os.path:isdir"', code=["os"])["orders"]
    assert policy.rules.on[0].predicate is os.path.isdir
    with pytest.raises(ValueError, match="which is neither an exception class nor a rule"):
        load('[orders]\non = ["os.path:isdir", "shutil:rmtree"]', code=["os"])


@pytest.mark.parametrize("code", ["shop", [5], ["../shop"], [""], 5])
def test_what_is_allowed_is_a_list_of_modules(load, code):
    """Anything else is refused with an error that says so."""
    with pytest.raises((TypeError, ValueError), match="code must be a list of modules"):
        load('[orders]\non = "OSError"', code=code)


def test_an_attribute_of_an_object_is_not_looked_up(load):
    """Only modules and classes are: an attribute of anything else may run code."""
    with pytest.raises(ValueError, match="cannot be found: 'ruling' would be an attribute of"):
        load('[orders]\non = "abate.decide.http:transient.ruling"')


# -- imports


def test_a_module_that_lies_about_is_not_imported(load, scenario, tmp_path, monkeypatch):
    """One on Python's path that is not installed, such as in the current directory, needs to be allowed."""
    (tmp_path / "lying_about.py").write_text("import sys\nsys.ran = True\nclass Busy(Exception): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("lying_about:Busy", "lying_about.Busy"):
        with pytest.raises(ValueError, match="'lying_about' is neither imported nor installed; to import it, allow it"):
            load(f'[orders]\non = "{name}"')
    with pytest.raises(ValueError, match="code is 'lying_about:fetch', which would be imported and run"):
        scenario('[clients]\ncount = 3\ncode = "lying_about:fetch"\n[services.api]\n')
    assert not hasattr(sys, "ran")
    try:
        (rule,) = load('[orders]\non = "lying_about:Busy"', code=["lying_about"])["orders"].rules.on
        assert rule.kind.__name__ == "Busy"
        assert load('[orders]\non = "lying_about.Busy"')["orders"].rules.on == (rule,), "it is imported by now"
    finally:
        del sys.ran


@pytest.mark.parametrize("name", ["unittest.__main__:X", "unittest.__main__.X", "abate.__main__:X", "antigravity:X"])
def test_a_module_that_is_a_program_is_not_imported(load, tmp_path, name):
    """Importing `unittest.__main__` runs the tests of the current directory, and ends the program."""
    (tmp_path / "test_planted.py").write_text("print('planted code ran')")
    (tmp_path / "policies.toml").write_text(f'[orders]\non = "{name}"')
    program = "import abate\ntry:\n abate.load_policies('policies.toml')\nexcept ValueError as error:\n print(error)"
    done = subprocess.run([sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert "is a program, which importing it would run" in done.stdout
    assert "planted" not in done.stdout + done.stderr
    with pytest.raises(ValueError, match="is a program, which importing it would run"):
        load(f'[orders]\non = "{name}"')


def test_an_import_that_exits_is_an_error(load, tmp_path, monkeypatch):
    """A module that ends the program when it is imported is named in the error, and the program goes on."""
    (tmp_path / "exits_at_once.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="'exits_at_once:X', which cannot be found: SystemExit: 3"):
        load('[orders]\non = "exits_at_once:X"', code=["exits_at_once"])


def test_what_takes_the_place_of_an_installed_module_is_not_imported(load, tmp_path, monkeypatch):
    """`is_installed` looks at the file that an import would run."""
    (tmp_path / "wave.py").write_text("raise SystemExit('hostile')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    importlib.invalidate_caches()
    assert not named_rules.is_installed("wave")
    with pytest.raises(ValueError, match="'wave' is neither imported nor installed"):
        load('[orders]\non = "wave:Error"')


def test_installed_modules_are_imported(load, monkeypatch):
    """The standard library and site-packages, whose code runs in every program that imports them."""
    assert all(map(named_rules.is_installed, ["json", "sys", "hypothesis", "abate", "zipimport"]))
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    wave, example = load('[orders]\non = ["wave:Error", "hypothesis.errors.NoSuchExample"]')["orders"].rules.on
    assert (wave.kind.__name__, example.kind.__name__) == ("Error", "NoSuchExample")


@pytest.mark.parametrize("top", ["no_such_module_anywhere", "__main__x", "tests"])
def test_what_is_not_installed(top):
    """What is nowhere, and what is in the working directory."""
    assert not named_rules.is_installed(top)


def test_what_is_wrong_with_a_module_is_said(load, tmp_path, monkeypatch):
    """What it lacks itself, what its names raise, and what is no name in it."""
    (tmp_path / "lacking.py").write_text("import not_installed_anywhere\n")
    (tmp_path / "lazy_names.py").write_text("def __getattr__(name):\n    raise RuntimeError('no ' + name)\n")
    folder = tmp_path / "lazy_shop"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "errors.py").write_text("class Busy(Exception): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, said in [
        ("lacking:Busy", "No module named 'not_installed_anywhere'"),
        ("lazy_names:Busy", "RuntimeError: no Busy"),
        ("xml.no_such.Thing", "No module named 'xml.no_such'"),
        ("lazy_shop.errors", "it is a module"),
    ]:
        with pytest.raises(ValueError, match=f"names '{name}', which cannot be found: {said}"):
            load(f'[orders]\non = "{name}"', code=["lacking", "lazy_names", "lazy_shop.errors"])
    (rule,) = load('[orders]\non = "lazy_shop.errors.Busy"', code=["lazy_shop.errors"])["orders"].rules.on
    assert rule.kind.__name__ == "Busy"


def test_a_module_without_a_file_is_not_installed(monkeypatch):
    """What a program has made itself says nothing about where it comes from."""
    monkeypatch.setitem(sys.modules, "made_here", type(sys)("made_here"))
    assert not named_rules.is_installed("made_here")
    monkeypatch.setitem(sys.modules, "made_here", object())
    assert not named_rules.is_installed("made_here")


HOSTILE = ("random", "numpy", "tomllib", "argparse", "json", "heapq", "shop", "sitecustomize_of_mine")


@pytest.fixture
def hostile(tmp_path):
    """A directory full of modules that tell when they run."""
    for name in HOSTILE:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r} + '\\n')\n")
    (tmp_path / "world.toml").write_text(f'{WORLD}[policy]\non = "abate.http.transient"\n')
    (tmp_path / "shop.toml").write_text(f'{WORLD}[policy]\non = "shop:Busy"\n')
    return tmp_path


def ran(folder):
    file = folder / "ran"
    return file.read_text().split() if file.exists() else []


def command(folder, *words, start=("-m", "abate")):
    path = str(Path(abate.__file__).parent.parent)
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, *start, *words], cwd=folder, env=env, capture_output=True, text=True)


CONSOLE = "import sys; sys.path.pop(0); from abate.cli import main; sys.exit(main())"
"""As the console script does, whose directory is that of the script."""


@pytest.mark.parametrize("start", [("-m", "abate"), ("-c", CONSOLE)], ids=["module", "script"])
def test_a_command_imports_nothing_from_the_current_directory(hostile, start):
    """Neither instead of the standard library, nor of an installed package, nor because a file names it."""
    done = command(hostile, "sim", "world.toml", "--seeds", "1", "--engine", "fleet", start=start)
    assert done.returncode == 0, done.stderr
    refused = command(hostile, "sim", "shop.toml", "--seeds", "1", start=start)
    assert refused.returncode == 2
    assert "--code shop" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert ran(hostile) == []


def test_a_command_imports_the_module_that_it_is_told(hostile):
    """With `--code` that one alone: what is installed is still found where it is installed."""
    with (hostile / "shop.py").open("a") as file:
        file.write("class Busy(Exception): ...\n")
    done = command(hostile, "sim", "shop.toml", "--seeds", "1", "--engine", "fleet", "--code", "shop")
    assert done.returncode == 0, done.stderr
    assert set(ran(hostile)) == {"shop"}


# -- bounds


DEEP = [
    "[orders]\non = " + 10_000 * "[" + 10_000 * "]",
    "[orders]\non = " + 10_000 * "{a = " + "1" + 10_000 * "}",
    "[" + "a." * 9_999 + "a]\nb = 1",
    "a." * 9_999 + "a = 1",
    "[orders]\non = " + 40 * "[" + 40 * "]",
]


@pytest.mark.parametrize("text", DEEP, ids=["lists", "tables", "names", "keys", "a little"])
def test_a_file_nested_deeply_is_refused(load, scenario, text):
    """With a line that names the file and the bound, and no RecursionError."""
    for loaded in (load, scenario):
        with pytest.raises(ValueError, match=r"\.toml must have at most 32 tables and lists within each other"):
            loaded(text)


LONG_KEYS = {
    "key": lambda key, length: f"{key} = 1",
    "table": lambda key, length: f"[{key}]\n" + "".join(f"b{number} = 1\n" for number in range(length)),
    "inline": lambda key, length: f"x = {{ {key} = 1 }}",
}
PARTS = {"bare": ".b", "spaces": " . b", "text": '."\\""', "literal": ".'.'"}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("document", LONG_KEYS.values(), ids=LONG_KEYS)
def test_a_long_key_takes_time_in_proportion(document, part):
    """It is refused before it is parsed: that would take the square of its length, for each line of its table."""

    def read(length):
        with pytest.raises(bounded_toml.TooDeep):
            bounded_toml.parse(document("a" + part * length, length))

    assert_in_proportion(read, 500)


@pytest.mark.parametrize(
    "text",
    ["x = [" + "0.1, " * 100 + "]", "# " + "Two words. " * 100, 'x = "' + "Two words. " * 100 + '"', "a.b.c.d = 1\n"],
)
def test_many_dots_are_not_a_long_key(text):
    """Lists of numbers, and sentences."""
    bounded_toml.parse(text)


def test_a_file_of_many_names_takes_time_in_proportion(tmp_path):
    """Names of shelters without a table are compared with those that have one, to find misspelt ones."""
    file = tmp_path / "app.toml"

    def read(length):
        described = "".join(f"[shelters.aaaa{number:04}]\n" for number in range(length))
        file.write_text(
            described
            + "".join(f'[p{number}]\non = "OSError"\nshelter = "bbbb{number:04}"\n' for number in range(length))
        )
        assert len(abate.load_policies(file)) == length

    assert_in_proportion(read, 300)


def test_a_large_file_is_refused(load, scenario):
    """Before it is parsed."""
    for loaded in (load, scenario):
        with pytest.raises(ValueError, match="must be of at most 1,048,576 bytes, and is larger"):
            loaded("# " + "x" * bounded_toml.MAX_BYTES)


def test_a_number_too_long_to_read_is_refused(load):
    """Python refuses to read it, and the error names the file."""
    with pytest.raises(ValueError, match="is not TOML: "):
        load("[orders]\nmax_attempts = " + "9" * 10_000)


def test_a_sweep_is_bounded(scenario):
    """By the number of its cases, which is computed and not tried."""
    values = "[" + ", ".join(map(str, range(1, 101))) + "]"
    sweep = "[sweep]\n" + "\n".join(
        f'"{path}" = {values}' for path in ("clients.count", "services.api.workers", "run.seeds", "policy.max_attempts")
    )
    with pytest.raises(ValueError, match=rf"make 100,000,000 cases; expected at most {MAX_CASES:,}"):
        scenario(f"{WORLD}[policy]\n{sweep}\n")


def test_seeds_are_bounded(scenario):
    """In a file."""
    with pytest.raises(ValueError, match=r"\[run\] seeds must be at most 100,000, not 1,000,000,000"):
        scenario(f"{WORLD}[run]\nseeds = 1_000_000_000\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["herd", "--seeds", "100001"], "--seeds must be at most 100,000, not 100,001"),
        (["tune", "herd", "--samples", "10001"], "--samples must be at most 10,000, not 10,001"),
        (["herd", "--set", "policy.on=" + 9_000 * "["], "a value must have at most 32 tables and lists"),
        (["herd", "--set", "a." * 40 + "a=1"], "must lead through at most 32 tables, not 41"),
        (["herd", "--set", "policy.on='os:remove'"], "which is neither an exception class nor a rule"),
    ],
    ids=["seeds", "samples", "value", "path", "function"],
)
def test_the_command_line_is_bounded_too(capsys, words, said):
    """Exit code 2, and one line."""
    from abate.cli import main

    assert main(["sim", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


# -- anything at all

SCALARS = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["OSError", "os:remove", "no.such:Thing", "abate.http.transient", "json", "..", "a:b:c", ":"]),
)
KEY = st.one_of(
    st.sampled_from(
        [*KEYS, "base", "cap", "jitter", "ratio", "policies", "policy", "shelters", "capacity", "patience"]
    ),
    st.sampled_from(
        [
            "run",
            "clients",
            "controllers",
            "services",
            "triggers",
            "variants",
            "sweep",
            "assert",
            "count",
            "code",
            "kind",
            "horizon",
        ]
    ),
    st.text(max_size=8),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=4), max_leaves=12
)


def written(value):
    """A value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return "{" + ", ".join(f"{quoted(key)} = {written(inner)}" for key, inner in value.items()) + "}"


def quoted(text):
    escaped = "".join(
        letter if letter.isalnum() and letter.isascii() else f"\\U{ord(letter):08x}"
        for letter in text
        if not 0xD800 <= ord(letter) < 0xE000
    )
    return f'"{escaped}"'


DOCUMENTS = st.dictionaries(KEY, VALUES, max_size=5).map(
    lambda document: "\n".join(f"{quoted(key)} = {written(value)}" for key, value in document.items())
)


@settings(max_examples=150, deadline=None)
@given(data=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode(errors="replace"))))
def test_bytes_are_policies_or_a_clear_error(tmp_path_factory, data):
    """Whatever is in the file."""
    file = tmp_path_factory.getbasetemp() / "bytes.toml"
    file.write_bytes(data)
    for loaded in (load_policies, sim.load_scenario):
        try:
            loaded(file)
        except ValueError as error:
            assert str(file) in str(error)


@settings(max_examples=200, deadline=None)
@given(text=DOCUMENTS)
def test_documents_are_policies_or_a_clear_error(tmp_path_factory, text):
    """Tables and values of every kind under names that are known and unknown."""
    file = tmp_path_factory.getbasetemp() / "document.toml"
    file.write_text(text, encoding="utf-8")
    for loaded in (load_policies, sim.load_scenario):
        try:
            loaded(file)
        except ValueError as error:
            assert str(file) in str(error)


EVIL = "red\x1b[31m\nLINE"
IN_TOML = r'"red\u001b[31m\nLINE"'


@pytest.mark.parametrize(
    "text",
    [
        f'[{IN_TOML}]\non = ["Nope"]',
        f"{IN_TOML} = 3",
        f'[{IN_TOML}]\non = "OSError"\nmax_attempts = 0',
        f'[{IN_TOML}]\non = "OSError"\nbudget = {{ reserve = -1 }}',
        f'[{IN_TOML}]\non = "OSError"\n{IN_TOML} = 1',
        f"[orders]\non = {IN_TOML}",
        f"[shelters.{IN_TOML}]\ncapacity = 0",
        f"[shelters]\n{IN_TOML} = 1",
        f'[policies.{IN_TOML}]\non = "OSError"\n[{IN_TOML}]\non = "OSError"',
        f"[{IN_TOML}]\n[{IN_TOML}]",
    ],
)
def test_names_in_a_file_cannot_forge_lines_of_an_error(tmp_path, text):
    """Line ends and terminal sequences in what is refused are written as escapes."""
    file = tmp_path / "app.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match="app") as caught:
        abate.load_policies(file)
    assert str(caught.value).isprintable()
    assert r"red\x1b[31m\nLINE" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        f"[services.{IN_TOML}]\nworkers = 0",
        f"[services.db]\nworkers = 1\n[variants.{IN_TOML}]\nrun = 3",
        f"{IN_TOML} = 3",
        f"[services.db]\ncalls = [{IN_TOML}]",
        f"[sweep]\n{IN_TOML} = 3",
    ],
)
def test_names_in_a_scenario_cannot_forge_lines_of_an_error(tmp_path, text):
    """The same for scenarios."""
    file = tmp_path / "app.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match="app") as caught:
        abate.sim.load_scenario(file)
    assert str(caught.value).isprintable()
    assert r"red\x1b[31m\nLINE" in str(caught.value)


def test_a_policy_s_name_cannot_forge_lines_of_an_error():
    """A call that came too late names its policy on one line."""
    with abate.deadline(0.0), pytest.raises(abate.DeadlineExceeded) as caught:
        abate.Policy(name=EVIL, on=OSError).call(print)
    assert str(caught.value).isprintable()
