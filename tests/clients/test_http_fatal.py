"""What no attempt can change is fatal in every client, by any rule, and says nothing about the server."""

import contextlib
import socket
import threading

import pytest

import abate
from tests.clients.drivers import ALL_DRIVERS, Ask, driver_name, policy
from tests.decide.network_faults import untrusted

pytestmark = pytest.mark.parametrize("driver", ALL_DRIVERS, ids=driver_name)
RULES = pytest.mark.parametrize(
    "on",
    [abate.http.transient, OSError, Exception, lambda error: True],
    ids=["transient", "OSError", "Exception", "a predicate"],
)


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """The settings of a server with a certificate that no client trusts."""
    return untrusted(tmp_path_factory.mktemp("tls"))


@contextlib.contextmanager
def serving(tls):
    """A server that does nothing but handshakes; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError), connection, tls.wrap_socket(connection, server_side=True):
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(60)


@RULES
def test_a_certificate_that_is_not_trusted_is_fatal(driver, on, tls):
    """After one attempt each; the shelter goes on to let calls through."""
    shelter = abate.Shelter(name="shop", patience=1.0)
    settings = policy(on=on, shelter=shelter)
    with serving(tls) as port:
        for _ in range(5):
            with pytest.raises(driver.errors) as caught:
                driver.fetch(Ask(f"https://127.0.0.1:{port}/"), settings)
            assert (abate.report(caught.value).reason, abate.report(caught.value).attempts) == ("fatal", 1)
    assert shelter.state == "calm"


@RULES
def test_a_scheme_that_is_not_supported_is_fatal(driver, on):
    """Whether the library or the policy finds out first."""
    with pytest.raises(Exception) as caught:
        driver.fetch(Ask("gopher://127.0.0.1/"), policy(on=on))
    report = abate.report(caught.value)
    assert report is None or (report.reason, report.attempts) == ("fatal", 1)


@RULES
@pytest.mark.parametrize(
    "url",
    [
        "http:///nowhere",
        "http://[shop",
        "http://127.0.0.1:99999/",
        "http://the shop/",
        "http://[::zz]/",
        "http://shop..example/",
        f"http://{'a' * 64}.example/",
    ],
)
def test_a_url_that_is_invalid_is_fatal(driver, on, url):
    """Also where the library takes it for a host that is not there, and in the eyes of a shelter."""
    shelter = abate.Shelter(name="shop", patience=1.0)
    with pytest.raises(Exception) as caught:
        driver.fetch(Ask(url), policy(on=on, shelter=shelter))
    report = abate.report(caught.value)
    assert report is None or (report.reason, report.attempts) == ("fatal", 1)
    assert shelter.state == "calm"
