"""A `Retry` of urllib3 in an adapter or a pool manager."""

import http.server
import threading
from typing import ClassVar

import pytest

from tests.migrate.rewriting import migrated, reason, rewritten

HEAD = "import requests\nfrom requests.adapters import HTTPAdapter\nfrom urllib3.util.retry import Retry\n\n\n"
SESSION = """\
def session():
    found = requests.Session()
    retries = Retry(total=3, status_forcelist=[503])
    found.mount("http://", HTTPAdapter(pool_maxsize=2, max_retries=retries))
    return found
"""


@pytest.fixture
def server():
    """A server that answers 503 twice for each path; its requests are its value's `asked`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        asked: ClassVar[list] = []

        def do_GET(self):
            self.asked.append(self.path)
            self.send_response(503 if self.asked.count(self.path) < 3 or self.path == "/down" else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_session_sends_as_often(server):
    """Until it succeeds, or until the attempts have run out."""
    asked = {}
    for side, code in (("old", HEAD + SESSION), ("new", rewritten(HEAD + SESSION))):
        namespace = {}
        exec(compile(code, "app.py", "exec"), namespace)
        url = f"http://127.0.0.1:{server.server_port}"
        with namespace["session"]() as session:
            assert session.get(f"{url}/{side}").status_code == 200
            try:
                assert session.get(f"{url}/down").status_code == 503
            except namespace["requests"].exceptions.RetryError:
                assert side == "old"
        asked[side] = server.RequestHandlerClass.asked.copy()
        server.RequestHandlerClass.asked.clear()
    assert [asked[side].count(f"/{side}") for side in asked] == [3, 3]
    assert [asked[side].count("/down") for side in asked] == [4, 4]


def test_the_rewritten_session():
    """Names, other arguments and imports."""
    new = rewritten(HEAD + SESSION)
    assert new.startswith("import abate\nimport abate.clients.requests\nimport requests\n")
    assert 'found.mount("http://", abate.clients.requests.Adapter(retries, pool_maxsize=2))' in new
    assert "HTTPAdapter" not in new
    assert migrated(new) is None or migrated(new).after == new


@pytest.mark.parametrize(
    ("retry", "why"),
    [
        ("Retry(total=3, connect=5)", "connect=5 beside total=3"),
        ("Retry(total=None)", "total=None has no equivalent"),
        ("Retry(respect_retry_after_header=False)", "abate keeps a Retry-After"),
        ("Retry(status_forcelist=[0])", "statuses from 400 to 599"),
        ("Retry(backoff_jitter=1)", "backoff_jitter has no equivalent"),
        ("Retry(allowed_methods=METHODS)", "can't be read without running the code"),
    ],
)
def test_settings_without_equivalent(retry, why):
    """The adapter stays as it is."""
    assert why in reason(f"{HEAD}adapter = HTTPAdapter(max_retries={retry})\n")


def test_a_retry_that_cannot_be_followed():
    """It is listed."""
    assert "not passed to an HTTPAdapter" in reason(f"{HEAD}def make():\n    return Retry(3)\n")
    used_twice = HEAD + SESSION.replace("return found", "return found, retries")
    assert "also used on line" in migrated(used_twice).sites[0].reason


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ("total=4, backoff_factor=0.5", "backoff=[0.0, 1.0, 2.0, 4.0]"),
        ("total=TOTAL", "max_attempts=TOTAL + 1"),
        ("allowed_methods=None", "idempotent=True"),
        ('allowed_methods=["GET", "POST"]', "idempotent=True"),
        ("status_forcelist=STATUSES", "abate.http.status(*STATUSES)"),
    ],
)
def test_settings(given, setting):
    """What a setting becomes."""
    assert setting in rewritten(f"{HEAD}adapter = HTTPAdapter(max_retries=Retry({given}))\n")
