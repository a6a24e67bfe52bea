"""How the clients' own code is named: a function or its name, in Python and in a scenario."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import abate
from abate import sim

Send = Callable[[], Awaitable[None]]


def world(code: Any, **settings: Any) -> sim.World:
    clients = sim.Clients(count=3, arrivals="once", code=code, processes=settings.pop("processes", 1))
    return sim.World(clients, [sim.Service("api", service_time=0.1)], **settings)


async def fetch(send: Send) -> None:
    await send()


def test_code_may_be_given_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a scenario does: the module and the function in it."""
    (tmp_path / "shop.py").write_text(
        "class Orders:\n    @staticmethod\n    async def fetch(send):\n        await send()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert world("shop:Orders.fetch").run(engine="coroutine").successes == 3


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("fetch", ValueError, "code must name a module and an async function in it, as 'app:fetch', not 'fetch'"),
        (":fetch", ValueError, "code must name a module and an async function in it, as 'app:fetch', not ':fetch'"),
        (42, TypeError, "code must be an async function or its name, as 'app:fetch', not 42"),
        ("nowhere.app:fetch", ValueError, "clients.code is 'nowhere.app:fetch', but there is no module 'nowhere'"),
        ("asyncio:fetch", ValueError, "clients.code is 'asyncio:fetch', but asyncio has no 'fetch'"),
        ("math:pi", TypeError, "clients.code is 'math:pi', which must be an async function, not 3.14"),
    ],
)
def test_code_that_is_none_is_refused(code: Any, error: type[Exception], message: str) -> None:
    """The error names what was given, and what was expected."""
    with pytest.raises(error) as caught:
        world(code).run(engine="coroutine")
    assert str(caught.value).startswith(message)


def test_a_module_that_fails_to_import_fails_as_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it misses itself is not mistaken for the module that was named."""
    (tmp_path / "broken.py").write_text("import not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_installed"):
        world("broken:fetch").run(engine="coroutine")


@pytest.mark.parametrize("engine", ["exact", "fleet"])
def test_other_engines_refuse_code(engine: Any) -> None:
    """They have no loop to run it in, and say which one has."""
    with pytest.raises(ValueError, match=f"clients.code can be run by the engine 'coroutine' only, not by '{engine}'"):
        world(fetch).run(engine=engine)


def test_code_is_of_one_process() -> None:
    """Its clients share its objects, so they cannot be divided."""
    with pytest.raises(ValueError, match="processes must be 1 where clients share the objects of their code, not 2"):
        world(fetch, processes=2)


def test_a_policy_beside_code_is_noted() -> None:
    """The code makes its own attempts; the reader is told that the policy has no part in it."""
    run = world(fetch, policy=abate.Policy(on=sim.Answer)).run(engine="coroutine")
    assert run.notes == ("the policy of the clients is not used: they have their own code",)


def test_a_scenario_names_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In TOML, for all clients or as a variant beside a policy; what is no name is refused with file, table and key."""
    (tmp_path / "shopping.py").write_text("async def fetch(send):\n    await send()\n")
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "shop.toml"
    text = (
        '[run]\nengine = "coroutine"\n[clients]\ncount = 3\narrivals = "once"\n[services.api]\n[variants.own.clients]\n'
    )
    file.write_text(text + 'code = "shopping:fetch"\n')
    with pytest.raises(
        ValueError, match=r"shop.toml.*clients\]: code is 'shopping:fetch', which would be imported and run"
    ):
        sim.load_scenario(file)
    cases = sim.load_scenario(file, code=["shopping"]).cases()
    assert [case.world.run(engine=case.engine).successes for case in cases] == [3] * len(cases)  # type: ignore[arg-type]
    assert cases[-1].world.clients.code == "shopping:fetch"  # type: ignore[union-attr]
    file.write_text(text + 'code = "fetch"\n')
    with pytest.raises(ValueError, match=r"shop.toml.*clients.*code must name a module and an async function in it"):
        sim.load_scenario(file)
