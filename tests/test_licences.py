"""What is shipped names its licences, and what others wrote is what they wrote."""

import hashlib
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
VENDORED = tomllib.loads((ROOT / "VENDORED.toml").read_text())["file"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
AXE = "tests/observe/axe/"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The files of the wheel and of the sdist, by name, with their content."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True, capture_output=True
    )
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        in_wheel = {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(next(folder.glob("*.tar.gz"))) as sdist:
        members = [member for member in sdist.getmembers() if member.isfile()]
        in_sdist = {member.name.partition("/")[2]: sdist.extractfile(member).read() for member in members}
    return in_wheel, in_sdist


def metadata(files, name):
    return message_from_bytes(next(content for path, content in files.items() if path.endswith(name)))


def test_the_metadata_name_every_licence_of_what_is_shipped(built):
    """The expression names abate's own and uPlot's; the text of each is in wheel and sdist."""
    wheel, sdist = built
    for files, name in ((wheel, ".dist-info/METADATA"), (sdist, "PKG-INFO")):
        told = metadata(files, name)
        assert told["License-Expression"] == "Apache-2.0 AND MIT"
        assert sorted(told.get_all("License-File")) == ["LICENSE", "src/abate/observe/page/assets/uPlot.LICENSE"]
        for path in told.get_all("License-File"):
            assert any(
                shipped.endswith(path) and content == (ROOT / path).read_bytes() for shipped, content in files.items()
            )
    assert wheel["abate/observe/page/assets/uPlot.LICENSE"].startswith(b"The MIT License")


def test_what_is_of_another_licence_is_not_shipped(built):
    """axe (MPL-2.0) serves the tests of this repository alone."""
    for files in built:
        assert not [path for path in files if path.startswith(AXE)]
        assert not [path for path, content in files.items() if path.endswith(".js") and b"Deque Systems" in content]


def test_the_sdist_has_what_it_speaks_of(built):
    """The record of what others wrote, the security notes and the changes."""
    assert {"VENDORED.toml", "SECURITY.md", "CHANGELOG.md", "LICENSE"} <= built[1].keys()


@pytest.mark.parametrize("file", VENDORED, ids=lambda file: file["path"])
def test_what_others_wrote_is_unchanged(file, built):
    """By its hash; its licence lies beside it, and it is shipped if the record says so."""
    path = ROOT / file["path"]
    if not path.exists() and not file["shipped"]:
        pytest.skip("an sdist has it not")
    content = path.read_bytes()
    assert hashlib.sha256(content).hexdigest() == file["sha256"]
    assert (ROOT / file["licence_file"]).exists()
    assert file["version"] in file["origin"]
    if path.suffix == ".js":
        assert file["version"].encode() in content[:200]
    assert (file["path"].removeprefix("src/") in built[0]) is file["shipped"]
    if file["shipped"]:
        assert file["licence"] in PROJECT["license"]


def test_everything_minified_is_on_the_record():
    """A script or style sheet from elsewhere can't slip in."""
    found = {str(path.relative_to(ROOT)) for top in ("src", "tests", "docs") for path in (ROOT / top).rglob("*.min.*")}
    assert found <= {file["path"] for file in VENDORED}


def test_the_extra_all_is_all_of_them():
    """``pip install abate[all]`` misses nothing."""
    extras = PROJECT["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    assert everything.name == "abate"
    assert everything.extras == extras.keys() - {"all"}


def test_what_is_pinned_fulfils_the_lower_bounds():
    """The versions that the tests run with are versions that the extras allow."""
    pinned = dict(re.findall(r"(?m)^([\w.-]+)==([\w.]+)", (ROOT / "requirements" / "dev.txt").read_text()))
    pinned = {name.lower().replace("-", "_"): version for name, version in pinned.items()}
    wanted = [Requirement(each) for extra in PROJECT["optional-dependencies"].values() for each in extra]
    wanted = [requirement for requirement in wanted if requirement.name != "abate"]
    assert len(wanted) > 15
    for requirement in wanted:
        assert requirement.specifier.contains(pinned[requirement.name.lower().replace("-", "_")]), requirement
