"""docs/architecture.md lists every module, and names no file that does not exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
SOURCE = ROOT / "src" / "abate"


def tables() -> dict[str, set[str]]:
    """Return the files of each package, as the page lists them."""
    parts = re.split(r"^### (.+)$", PAGE.split("## Four walks")[0], flags=re.MULTILINE)
    return {
        name: set(re.findall(r"^\| `(\w+\.py)` \|", text, re.MULTILINE))
        for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def test_every_module_is_in_the_table_of_its_package():
    """A new file has a row, and a row has its file."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        if path.name not in ("__init__.py", "__main__.py"):
            package = path.parent.relative_to(SOURCE).as_posix()
            found.setdefault("root modules" if package == "." else package, set()).add(path.name)
    assert tables() == found


def test_every_path_on_the_page_exists():
    """The walks and the table of locks name files that are there."""
    named = set(re.findall(r"`([a-z_]+(?:/[\w.]+)+\.(?:py|lua))`", PAGE))
    assert named
    assert [path for path in sorted(named) if not (SOURCE / path).exists() and not (ROOT / path).exists()] == []
