"""A missing optional library raises an error that names the extra to install."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("library", "code", "said"),
    [
        (
            "prometheus_client",
            "observe.PrometheusSink()",
            "abate.observe.PrometheusSink needs prometheus_client: install abate[prometheus]",
        ),
        (
            "prometheus_client",
            "from abate.observe.prometheus import PrometheusSink",
            "abate.observe.PrometheusSink needs prometheus_client: install abate[prometheus]",
        ),
        (
            "opentelemetry",
            "observe.OpenTelemetrySink()",
            "abate.observe.OpenTelemetrySink needs opentelemetry: install abate[otel]",
        ),
        (
            "structlog",
            "from abate.observe import StructlogSink",
            "abate.observe.StructlogSink needs structlog: install abate[structlog]",
        ),
        ("httpx2", "import abate.clients.httpx2", "abate.clients.httpx2 needs httpx2: install abate[httpx2]"),
        ("requests", "import abate.clients.requests", "abate.clients.requests needs requests: install abate[requests]"),
        ("urllib3", "import abate.clients.requests", "abate.clients.requests needs urllib3: install abate[requests]"),
        ("urllib3", "import abate.clients.urllib3", "abate.clients.urllib3 needs urllib3: install abate[urllib3]"),
        ("aiohttp", "import abate.clients.aiohttp", "abate.clients.aiohttp needs aiohttp: install abate[aiohttp]"),
        ("starlette", "observe.page.app()", "abate.observe.page needs starlette: install abate[page]"),
        ("starlette", "from abate.observe import page", "abate.observe.page needs starlette: install abate[page]"),
    ],
)
def test_a_missing_library_names_its_extra(library, code, said):
    """The error is an ImportError that names the module."""
    program = f"""
import sys
sys.modules[{library!r}] = None
from abate import observe
try:
    {code}
except ModuleNotFoundError as error:
    print(error.name, "|", error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    name, _, text = done.stdout.strip().partition(" | ")
    assert (name.partition(".")[0], text) == (library, said), done.stderr


def test_without_httpx_and_httpx2_the_error_names_httpx():
    """Either of them would do."""
    program = """
import sys
sys.modules["httpx"] = sys.modules["httpx2"] = None
try:
    import abate.clients.httpx
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "abate.clients.httpx needs httpx: install abate[httpx]", done.stderr
