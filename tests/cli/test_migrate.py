"""`abate migrate`: what it prints, and what it writes."""

import stat
import subprocess
import sys

import pytest

from abate.cli import main
from abate.errors import AbateError
from abate.migrate.files import SourceFile

CODE = """\
from tenacity import retry, stop_after_attempt, wait_fixed


@retry(stop=stop_after_attempt(3), wait=wait_fixed(2), reraise=True)
def load():
    ...


@retry(stop=lambda state: True)
def custom():
    ...
"""


@pytest.fixture
def app(tmp_path):
    file = tmp_path / "app.py"
    file.write_text(CODE)
    return file


def test_it_shows_a_diff_and_writes_nothing(app, capsys):
    """Without --write the file stays as it is."""
    assert main(["migrate", str(app)]) == 0
    shown = capsys.readouterr().out
    assert "+@abate.retry(on=Exception, max_attempts=3, backoff=[2])\n" in shown
    assert "repeat the command with --write" in shown
    assert app.read_text() == CODE


def test_each_site_is_said_with_its_line(app, capsys):
    """What was left says why, and what still uses the library is listed."""
    main(["migrate", str(app)])
    shown = capsys.readouterr().out
    assert f"{app}:4: @retry(stop=stop_after_attempt(3), wait=wait_fixed(2), rer... on load\n" in shown
    assert (
        f"{app}:9: @retry(stop=lambda state: True) on custom\n  left as it is: stop=lambda state: True has no" in shown
    )
    assert "1 of 2 sites rewritten in 1 files; 1 left as they are" in shown
    assert "docs/migrate/tenacity.md" in shown


def test_write_keeps_mode_line_endings_and_encoding(app, capsys):
    """The file is replaced as a whole, and differs only where it retries."""
    text = "# -*- coding: latin-1 -*-\n# Größe\n" + CODE
    app.write_bytes(text.replace("\n", "\r\n").encode("latin-1"))
    app.chmod(0o750)
    assert main(["migrate", str(app), "--write"]) == 0
    content = app.read_bytes()
    assert content.startswith("# -*- coding: latin-1 -*-\r\n# Größe\r\nimport abate\r\n".encode("latin-1"))
    assert content.count(b"\n") == content.count(b"\r\n")
    assert stat.S_IMODE(app.stat().st_mode) == 0o750
    assert list(app.parent.iterdir()) == [app]


def test_a_second_run_changes_nothing(app, capsys):
    """What could not be migrated is listed again, and the file stays as it is."""
    main(["migrate", str(app), "--write"])
    content = app.read_bytes()
    capsys.readouterr()
    assert main(["migrate", str(app), "--write"]) == 0
    assert app.read_bytes() == content
    assert "0 of 1 sites rewritten" in capsys.readouterr().out


def test_only_the_library_that_was_asked_for(app, capsys):
    """`--from` leaves the others alone."""
    main(["migrate", str(app), "--from", "backoff"])
    assert "0 of 0 sites" in capsys.readouterr().out


def test_files_that_cannot_be_read_are_said_and_skipped(app, capsys):
    """The others are migrated, and the exit code is 1."""
    (app.parent / "binary.py").write_bytes(b"\xff\xfe\x00")
    (app.parent / "broken.py").write_text("from tenacity import retry\ndef (:\n")
    assert main(["migrate", str(app.parent)]) == 1
    shown = capsys.readouterr()
    assert "1 of 2 sites" in shown.out
    assert "skipped: " in shown.err
    assert "binary.py" in shown.err
    assert "broken.py" in shown.err


def test_a_path_that_does_not_exist(tmp_path, capsys):
    """The error names it."""
    assert main(["migrate", str(tmp_path / "nothing")]) == 2
    assert "there is no file or folder" in capsys.readouterr().err


def test_without_libcst_it_says_what_to_install(app):
    """The extra is named."""
    code = "import sys; sys.modules['libcst'] = None; from abate.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, "migrate", str(app)], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "abate: abate migrate needs libcst: install abate[migrate]\n"


def test_a_file_that_cannot_be_written_does_not_stop_the_others(tmp_path, capsys, monkeypatch):
    """It is named, the others are written, and the exit code is 1."""
    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).write_text(CODE)
    written = SourceFile.write

    def write(file, text):
        if file.path.name == "b.py":
            raise AbateError(f"{file.path} was changed while it was read")
        written(file, text)

    monkeypatch.setattr(SourceFile, "write", write)
    assert main(["migrate", str(tmp_path), "--write"]) == 1
    shown = capsys.readouterr()
    assert "not written: " in shown.out + shown.err
    assert "1 of 3 files are not written; the others are" in shown.out
    assert [("abate" in (tmp_path / name).read_text()) for name in ("a.py", "b.py", "c.py")] == [True, False, True]
