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


@pytest.mark.parametrize(
    ("library", "module", "said"),
    [
        ("sqlalchemy", "sqlalchemy", "abate.clients.sqlalchemy needs sqlalchemy: install abate[sqlalchemy]"),
        ("redis", "redis", "abate.clients.redis needs redis: install abate[redis]"),
        ("botocore", "botocore", "abate.clients.botocore needs botocore: install abate[botocore]"),
        ("grpc", "grpc", "abate.clients.grpc needs grpcio: install abate[grpc]"),
        ("google.rpc", "grpc", "abate.clients.grpc needs googleapis-common-protos: install abate[grpc]"),
        ("grpc", "grpc_server", "abate.clients.grpc_server needs grpcio: install abate[grpc]"),
    ],
)
def test_a_client_without_its_library_names_the_extra(library, module, said):
    """When the module is imported, and with the name that is installed."""
    assert import_error(library, f"import abate.clients.{module}") == f"{library} | {said}"


def test_sqs_and_lambda_need_boto3_only_when_they_talk_to_sqs():
    """A Lambda function without delays and dead letters runs without it."""
    queue = "from abate.clients import aws_lambda, sqs; sqs.Queue('https://sqs.eu-west-1.amazonaws.com/123456789012/a')"
    assert import_error("boto3", queue) == "boto3 | abate.clients.sqs needs boto3: install abate[sqs]"
    delays = """
handler = aws_lambda.consumer(delays=True, dead_letters=None)(lambda message: 1 / 0)
assert handler({"Records": []}) == {"batchItemFailures": []}
handler._queues._queue("arn:aws:sqs:eu-west-1:123456789012:orders")
"""
    said = import_error("boto3", f"from abate.clients import aws_lambda{delays}")
    assert said == "boto3 | abate.clients.sqs needs boto3: install abate[sqs]"


def import_error(library, code):
    """Return the name and the text of the ImportError that code raises without a library."""
    program = f"import sys\nsys.modules[{library!r}] = None\ntry:\n" + "".join(
        f"    {line}\n" for line in code.strip().splitlines()
    )
    program += "except ImportError as error:\n    print(error.name, '|', error)\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


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
