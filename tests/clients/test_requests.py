"""What is requests' own under a policy, against a real server."""

import copy
import io
import pickle
import warnings

import pytest
import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.auth import HTTPDigestAuth

import abate
from abate.clients.requests import Adapter
from abate.testing import VirtualClock
from tests.clients.drivers import policy
from tests.clients.server import Server, close, respond

LONG = b"x" * 1_000_000


@pytest.fixture
def session():
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", Adapter(policy(), pool_maxsize=1, pool_block=True))
        yield session


@pytest.mark.parametrize("retries", [3, urllib3.Retry(3), urllib3.Retry(connect=2), urllib3.Retry(total=None)], ids=str)
def test_retries_of_its_own_are_warned_of_and_not_used(retries):
    """max_retries would multiply with the policy: the user is told, and the policy decides alone."""
    with pytest.warns(abate.LayeredRetryWarning, match="would multiply"):
        adapter = Adapter(policy(), max_retries=retries)
    with Server(*[close] * 9) as server, requests.Session() as session:
        session.mount("http://", adapter)
        with pytest.raises(requests.ConnectionError):
            session.get(server.url, timeout=10)
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "retries", [0, False, urllib3.Retry(0), urllib3.Retry(9, False, False, 9, 0, other=0)], ids=str
)
def test_no_retries_of_its_own_are_fine(retries):
    """Where nothing would multiply, nothing is said."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Adapter(policy(), max_retries=retries).close()


def test_digest_auth_is_the_session_s(session):
    """The answer to a challenge is sent through the same adapter, and retried as well."""
    challenge = ("WWW-Authenticate", 'Digest realm="shop", nonce="abc", qop="auth", algorithm=MD5')
    with Server(respond(401, challenge), respond(503)) as server:
        response = session.get(server.url, auth=HTTPDigestAuth("me", "secret"), timeout=10)
    assert response.status_code == 200
    assert [request.headers.get("authorization", "")[:6] for request in server.requests] == ["", "Digest", "Digest"]
    assert [request.headers["abate-attempt"] for request in server.requests] == ["1", "1", "2"]


def test_a_prepared_request_is_left_as_it_was():
    """A key and the headers of an attempt belong to the call: a request that is sent twice is two orders."""
    prepared = requests.Request("POST", "http://127.0.0.1/", data=b"order").prepare()
    with Server() as server, requests.Session() as session:
        session.mount("http://", Adapter(policy(), idempotency_key=True))
        prepared.url = server.url
        before = dict(prepared.headers)
        first, second = session.send(prepared), session.send(prepared)
    assert dict(prepared.headers) == before
    assert first.request.headers["Idempotency-Key"] != second.request.headers["Idempotency-Key"]


@pytest.mark.parametrize(
    "timeout", [0.1, (10, 0.1), urllib3.Timeout(0.1), urllib3.Timeout(read=0.1), urllib3.Timeout(10, 10, 0.1)], ids=str
)
@pytest.mark.parametrize("seconds", [None, 30.0])
def test_timeouts_are_kept_in_every_form(timeout, seconds):
    """One number, two, or urllib3's own: each still ends an attempt, with a deadline or without."""
    with Server() as server, requests.Session() as session:
        server.script.append(server.hang)
        session.mount("http://", Adapter(policy(max_attempts=1)))
        with abate.deadline(seconds) if seconds else VirtualClock(), pytest.raises(requests.ReadTimeout):
            session.get(server.url, timeout=timeout)


def test_a_wrong_timeout_is_a_value_error(session):
    """Three numbers are as wrong as they are without a policy."""
    with pytest.raises(ValueError):
        session.get("http://127.0.0.1:1/", timeout=(1, 2, 3))


def test_a_wait_that_is_broken_off_frees_the_connection():
    """The program ends while a streamed bad response is held: the next request gets the one connection there is."""

    class Ended(BaseException):
        pass

    class Interrupted(VirtualClock):
        def sleep(self, seconds):
            raise Ended

    with Server(respond(503, body=LONG)) as server, requests.Session() as session:
        adapter = Adapter(policy(clock=Interrupted(), backoff=[1.0]), pool_maxsize=1, pool_block=True)
        session.mount("http://", adapter)
        with pytest.raises(Ended):
            session.get(server.url, stream=True, timeout=10)
        pool = adapter.poolmanager.connection_from_url(server.url)
        assert pool.pool.qsize() == 1
        assert session.get(server.url, timeout=10).text == "ok"


def test_a_proxy_is_sent_to_by_the_policy():
    """Responses of a proxy are retried, and the deadline bounds reading from it."""
    with Server(respond(503)) as server, requests.Session() as session:
        session.trust_env = False
        session.mount("http://", Adapter(policy()))
        session.proxies = {"http": server.url}
        assert session.get("http://nowhere.invalid/", timeout=10).text == "ok"
        server.script.append(server.drip)
        with abate.deadline(1.2), pytest.raises(requests.ReadTimeout):
            session.get("http://nowhere.invalid/", timeout=10)
    assert [request.path for request in server.requests] == ["http://nowhere.invalid/"] * 3


def test_a_proxy_that_refuses_was_never_told():
    """A POST that did not get as far as the proxy is sent again."""
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", Adapter(policy()))
        session.proxies = {"http": "http://127.0.0.1:1"}
        with pytest.raises(requests.exceptions.ProxyError) as caught:
            session.post("http://nowhere.invalid/", data=b"1", timeout=10)
    assert abate.report(caught.value).attempts == 3


def test_forms_and_files_are_sent_again(session, tmp_path):
    """What requests encodes beforehand is the same on every attempt."""
    session.mount("http://", Adapter(policy(idempotent=True)))
    with Server(respond(503)) as server:
        session.post(server.url, files={"order": io.BytesIO(b"42")}, data={"a": "b"}, timeout=10)
    first, second = (request.body for request in server.requests)
    assert first == second
    assert b"42" in first


def test_hooks_and_cookies_are_the_session_s(session):
    """The response that is returned is the one that the session sees."""
    seen = []
    with Server(respond(503), respond(200, ("Set-Cookie", "a=b"))) as server:
        session.get(server.url, hooks={"response": lambda response, **_: seen.append(response.status_code)}, timeout=10)
    assert seen == [200]
    assert session.cookies["a"] == "b"


def test_it_is_an_adapter_and_takes_what_one_takes():
    """Settings of HTTPAdapter go through; unknown ones are refused by it."""
    adapter = Adapter(policy(), pool_connections=3)
    assert isinstance(adapter, HTTPAdapter)
    assert adapter.poolmanager.pools._maxsize == 3
    with pytest.raises(TypeError, match="colour"):
        Adapter(policy(), colour="red")


@pytest.mark.parametrize("copied", [lambda session: pickle.loads(pickle.dumps(session)), copy.copy, copy.deepcopy])
def test_a_session_is_copied_and_pickled_with_its_policy(copied):
    """What a session can do anyway: the copy retries as well, and the adapter's other settings are there."""
    timeouts = abate.Timeouts()
    with Server(respond(503), respond(503)) as server, requests.Session() as session:
        session.mount("http://", Adapter(policy(), idempotency_key=True, timeouts=timeouts, pool_maxsize=3))
        with copied(session) as other:
            assert other.post(server.url, timeout=10).text == "ok"
            adapter = other.get_adapter(server.url)
        assert session.get(server.url, timeout=10).text == "ok"
    assert [request.headers["abate-attempt"] for request in server.requests] == ["1", "2", "3", "1"]
    assert adapter._pool_maxsize == 3
    assert len({request.headers["idempotency-key"] for request in server.requests[:3]}) == 1


def test_deep_copies_share_the_budget_and_pickles_have_their_own():
    """Within a process a copy is no second budget."""
    own = policy(budget=abate.Budget())
    adapter = Adapter(own)
    assert copy.deepcopy(adapter)._sender._settings.policy.budget is own.budget
    assert pickle.loads(pickle.dumps(adapter))._sender._settings.policy.budget is not own.budget
    with pytest.raises(TypeError, match="cannot be pickled: it has a clock of its own"):
        pickle.dumps(Adapter(policy(clock=VirtualClock())))
