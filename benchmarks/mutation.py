"""Breaks schedule/ and admit/ on purpose, one small change at a time, and lists the changes that no test noticed.

    make mutation                          # all of it; takes an hour or more
    python benchmarks/mutation.py admit/window.py schedule/hints.py

Each file is put to its own tests (they mirror the source), on a copy, with cosmic-ray.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
AREAS = ("schedule", "admit")
CONFIG = """
[cosmic-ray]
module-path = "src/abate/{module}"
timeout = 120.0
excluded-modules = []
test-command = "{python} -m pytest -x -q -p no:cacheprovider {tests}"

[cosmic-ray.distributor]
name = "local"

[cosmic-ray.filters.operators-filter]
# `|` stands in annotations only
exclude-operators = ["core/ReplaceBinaryOperator_BitOr_.*"]
"""


def tests_of(module: str) -> list[str]:
    area, name = module.removesuffix(".py").split("/")
    return sorted(str(file.relative_to(ROOT)) for file in (ROOT / "tests" / area).glob(f"test_{name}*.py"))


def mutate(module: str, where: Path) -> tuple[int, list[str]]:
    """How many changes were tried, and those that survived."""
    config = where / "mutation.toml"
    config.write_text(CONFIG.format(module=module, python=sys.executable, tests=" ".join(tests_of(module))))
    session = where / f"{module.replace('/', '-')}.sqlite"

    def run(*command: str) -> str:
        done = subprocess.run(
            [str(Path(sys.executable).parent / command[0]), *command[1:]],
            cwd=where,
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": "src", "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"},
        )
        return done.stdout

    run("cosmic-ray", "init", config.name, str(session))
    run("cr-filter-operators", str(session), config.name)
    run("cosmic-ray", "exec", config.name, str(session))
    tried, survived = 0, []
    for line in run("cosmic-ray", "dump", str(session)).splitlines():
        item, result = json.loads(line)
        if result is None or result["worker_outcome"] == "skipped":
            continue
        tried += 1
        if result["test_outcome"] == "survived":
            survived.append("\n".join(result["diff"].splitlines()[4:]) if result["diff"] else str(item))
    return tried, survived


def main() -> int:
    modules = sys.argv[1:] or [
        f"{area}/{file.name}" for area in AREAS for file in sorted((ROOT / "src/abate" / area).glob("[!_]*.py"))
    ]
    print("| file | changes tried | survived |\n|---|---:|---:|")
    left = []
    for module in modules:
        with tempfile.TemporaryDirectory() as folder:
            where = Path(folder)
            for part in ("src", "tests", "pyproject.toml"):
                source = ROOT / part
                (shutil.copytree if source.is_dir() else shutil.copy)(source, where / part)
            tried, survived = mutate(module, where)
        print(f"| {module} | {tried} | {len(survived)} |", flush=True)
        left += [f"\n{module}\n{diff}" for diff in survived]
    print(*left, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
