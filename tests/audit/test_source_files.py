"""Which files are audited, and that none of them can stop or hang an audit."""

import os
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from abate.audit import source_files
from abate.audit.auditing import audit
from abate.audit.settings import Settings
from abate.audit.source_files import Candidates, Skipped, SourceFile, read

LOOP = b"""import time
for i in range(%b):
    try:
        f()
        break
    except %b:
        time.sleep(%b)
"""

HOSTILE = {
    "broken": b"def f(:\n",
    "null bytes": b"a = 1\x00\n",
    "not UTF-8": b"name = '\xff\xfe'\n",
    "an unknown encoding": b"# coding: klingon\nx = 1\n",
    "an encoding that is no text": b"# coding: rot13\nx = 1\n",
    "deep parentheses": b"(" * 5000 + b")" * 5000,
    "deep lists": b"x = " + b"[" * 90 + b"]" * 90,
    "a deep sum": b"x = " + b"1 + " * 20_000 + b"1\n",
    "a deep attribute": b"x = a" + b".b" * 20_000 + b"\n",
    "deep calls": b"x = a" + b"()" * 5000 + b"\n",
    "deep negation": b"x = " + b"not " * 5000 + b"y\n",
    "deep blocks": b"".join(b" " * depth + b"if x:\n" for depth in range(99)) + b" " * 99 + b"pass\n",
    "many elifs": b"if x: pass\n" + b"elif x: pass\n" * 5000,
    "a huge number": b"x = " + b"9" * 100_000 + b"\n",
    "a huge power": LOOP % (b"9**9**9", b"OSError", b"9**9**9"),
    "a huge string": b"x = '" + b"a" * 3_000_000 + b"'\n",
    "too large": b"#" * (source_files.MAX_BYTES + 1),
    "names that lead to themselves": b"f = b\nb = c\nc = f\n" + LOOP % (b"f", b"b", b"c"),
    "a class that is its own base": b"class A(B): x = y\nclass B(A): y = x\nclass C(C): pass\nA().f().g()\n",
    "a function that returns itself": b"def f(): return g()\ndef g(): return f()\nf().x()\n",
    "many names": b"".join(b"x%d = x%d\n" % (n, n - 1) for n in range(1, 3000)),
    "many assignments": b"x = x()\n" * 3000 + b"x.y()\n",
    "empty": b"",
    "a bare return": b"return\n",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_is_read_or_skipped_with_a_reason(content, tmp_path):
    """Whatever is in a file, the audit goes on: the file beside it is audited."""
    (tmp_path / "hostile.py").write_bytes(content)
    (tmp_path / "fine.py").write_text("import requests\nrequests.get('https://example.com')\n")
    found = audit([tmp_path], Settings())
    by_file = {finding.spot.path.rpartition("/")[2]: finding for finding in found.findings}
    assert by_file["fine.py"].rule.id == "no-timeout"
    if found.files == 1:
        assert by_file["hostile.py"].rule.id == "skipped-file"
        assert by_file["hostile.py"].spot.message.startswith("not audited: ")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(st.binary(max_size=300), st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass")))
)
def test_any_bytes_are_read_or_skipped(tmp_path, content):
    """No content raises."""
    file = tmp_path / "any.py"
    file.write_bytes(content)
    assert isinstance(read(file), SourceFile | Skipped)
    audit([file], Settings())


WORDS = """
import tenacity time random requests from as retry for while True try except finally else: in range
( ) [ ] { } : , . = def class f x self a.b await async with return raise break continue lambda yield
1 2.5 'GET' ** + - min max == != if elif @tenacity.retry stop= wait= timeout= **kw *a sleep attempt
Exception ConnectionError None not and or pass
"""
BREAKS = ["\n", "\n    ", "\n        "] * 4


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(WORDS.split() + BREAKS), max_size=60))
def test_no_program_stops_the_audit(tmp_path, words):
    """Code that happens to parse is audited, however odd."""
    file = tmp_path / "odd.py"
    file.write_text(" ".join(words))
    audit([file], Settings())


def test_links_fifos_and_folders_named_like_modules_are_passed_over(tmp_path):
    """Nothing blocks on a FIFO, follows a loop of links, or opens a folder."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "code.py").write_text("x = 1\n")
    (package / "loop").symlink_to(tmp_path)
    (package / "again.py").symlink_to(package / "again.py")
    (package / "nowhere.py").symlink_to(tmp_path / "nothing")
    (package / "folder.py").mkdir()
    os.mkfifo(package / "pipe.py")
    done = threading.Event()
    result = []

    def run():
        result.append(audit([tmp_path], Settings()))
        done.set()

    threading.Thread(target=run, daemon=True).start()
    assert done.wait(30)
    assert result[0].files == 1
    assert {finding.spot.path.rpartition("/")[2] for finding in result[0].findings} == {
        "again.py",
        "nowhere.py",
        "pipe.py",
    }


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_skipped(tmp_path):
    """A file or folder without permission is reported."""
    (tmp_path / "closed").mkdir(mode=0)
    (tmp_path / "closed.py").write_text("x = 1\n")
    (tmp_path / "closed.py").chmod(0)
    found = Candidates([tmp_path])
    assert len(found.skipped) + sum(isinstance(read(file), Skipped) for file in found.files) == 2


def test_tests_hidden_folders_and_environments_are_left_out(tmp_path):
    """What is not the program is not audited, and left-out tests are counted."""
    for name in (
        "src/app.py",
        "tests/test_app.py",
        "src/test_more.py",
        ".hidden/x.py",
        "venv/lib/y.py",
        "mine/pyvenv.cfg",
        "mine/z.py",
    ):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    found = Candidates([tmp_path])
    assert [file.name for file in found.files] == ["app.py"]
    assert found.tests == 2
    assert sorted(file.name for file in Candidates([tmp_path], tests=True).files) == [
        "app.py",
        "test_app.py",
        "test_more.py",
    ]
    assert [file.name for file in Candidates([tmp_path], ["src/app.py"]).files] == []
    assert [file.name for file in Candidates([tmp_path / "tests" / "test_app.py"]).files] == ["test_app.py"]


def test_folders_beyond_the_depth_limit_are_reported(tmp_path, monkeypatch):
    """A tree of folders without an end does not keep the audit busy."""
    monkeypatch.setattr(source_files, "MAX_DEPTH", 3)
    (tmp_path / "a/b/c/d/e").mkdir(parents=True)
    (tmp_path / "a/b/c/d/e/x.py").write_text("")
    found = Candidates([tmp_path])
    assert found.files == []
    assert "3 folders deep" in found.skipped[0].reason
