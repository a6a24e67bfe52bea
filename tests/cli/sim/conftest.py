"""A directory with scenarios, and the command in this process."""

import pytest

from abate.cli import main
from tests.cli.sim.scenarios import FRAGILE, HERD, OUTAGE


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A directory with scenarios of our own, as the current one."""
    (tmp_path / "outage.toml").write_text(OUTAGE)
    (tmp_path / "once.toml").write_text(OUTAGE.replace("attempts = 3", "attempts = 1"))
    (tmp_path / "crowd.toml").write_text(HERD)
    (tmp_path / "fragile.toml").write_text(FRAGILE)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "app.toml").write_text('[orders]\non = "abate.http.transient"\nmax_attempts = 5\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sim(capsys):
    """Run `abate sim` with these words: exit code, stdout, stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        try:
            code = main(["sim", *map(str, words)])
        except SystemExit as ended:
            code = ended.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run
