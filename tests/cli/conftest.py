"""For the tests of the commands."""

import pytest


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    """Budgets of the tests are not those of the user who runs them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("ABATE_STORE", raising=False)
