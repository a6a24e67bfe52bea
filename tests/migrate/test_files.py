"""Reading and writing source files."""

import os
import stat

import pytest

from abate.errors import AbateError
from abate.migrate.files import MAX_BYTES, check_syntax, python_files, read
from tests.migrate.rewriting import migrated, reason


def test_a_file_is_replaced_with_its_mode_and_through_links(tmp_path):
    """Nothing else is left in the folder, and a link stays one."""
    file, link = tmp_path / "app.py", tmp_path / "link.py"
    file.write_text("x = 1\n")
    file.chmod(0o640)
    link.symlink_to(file)
    read(link).write("x = 2\n")
    assert file.read_text() == "x = 2\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["app.py", "link.py"]


def test_a_mark_of_the_byte_order_is_kept(tmp_path):
    """It belongs to the encoding."""
    file = tmp_path / "app.py"
    file.write_bytes(b"\xef\xbb\xbfx = 1\n")
    read(file).write("x = 2\n")
    assert file.read_bytes() == b"\xef\xbb\xbfx = 2\n"


def test_a_file_that_was_changed_meanwhile_is_not_replaced(tmp_path):
    """Somebody else's work is not lost."""
    file = tmp_path / "app.py"
    file.write_text("x = 1\n")
    kept = read(file)
    file.write_text("x = 3\n")
    with pytest.raises(AbateError, match="was changed while it was read"):
        kept.write("x = 2\n")
    assert file.read_text() == "x = 3\n"


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"# coding: nonsense\n", b"x" * (MAX_BYTES + 1)])
def test_what_cannot_be_read(tmp_path, content):
    """The error names the file."""
    file = tmp_path / "app.py"
    file.write_bytes(content)
    with pytest.raises(AbateError, match=r"app\.py"):
        read(file)


@pytest.mark.parametrize("code", ["def (:\n", "x = 1\0\n", "(" * 5000])
def test_what_cannot_be_parsed(tmp_path, code):
    """Broken and hostile files are errors, and nothing else."""
    file = tmp_path / "app.py"
    file.write_text(code)
    with pytest.raises(AbateError, match="can't be parsed"):
        check_syntax(read(file))


def test_hidden_folders_and_installed_packages_are_left_out(tmp_path):
    """What is not the program's own."""
    for name in ("src", ".venv", "node_modules", "__pycache__"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "app.py").write_text("")
    assert list(python_files(tmp_path)) == [tmp_path / "src" / "app.py"]


def test_code_that_is_nested_too_deep_is_listed():
    """The others of the program are migrated all the same."""
    deep = "import tenacity\nx = " + "-" * 900 + "1\n"
    assert "can't parse" in reason(deep)
    assert migrated("import tenacity\n\n\n@tenacity.retry(reraise=True)\ndef f(): ...\n", deep=deep).changed


def test_a_file_with_several_names_is_read_once(tmp_path):
    """A link beside it is the same file; a link to itself is an error of its own."""
    (tmp_path / "app.py").write_text("")
    (tmp_path / "link.py").symlink_to(tmp_path / "app.py")
    assert list(python_files(tmp_path)) == [tmp_path / "app.py"]


def test_a_file_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    """It stays as it is, and nothing is left beside it."""
    file = tmp_path / "app.py"
    file.write_text("x = 1\n")

    def refuse(*_):
        raise PermissionError("no")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(AbateError, match=r"app\.py can't be written"):
        read(file).write("x = 2\n")
    assert os.listdir(tmp_path) == ["app.py"]
    assert file.read_text() == "x = 1\n"
