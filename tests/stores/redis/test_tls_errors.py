"""What a store in Redis says about TLS that goes wrong."""

import pytest

import abate
from abate.stores.errors import StoreUnreachable
from tests.clients.tls_faults import TlsFaults


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """The servers of this module."""
    servers = TlsFaults(tmp_path_factory.mktemp("tls"))
    yield servers
    servers.close()


@pytest.mark.parametrize(
    ("host", "fault", "said"),
    [
        ("localhost", "untrusted", "has a certificate that this machine does not trust"),
        ("localhost", "wrong host", "has a certificate for another host name"),
        ("127.0.0.1", "wrong host", "has a certificate for a host name or another address"),
        ("localhost", "no TLS", "does not speak TLS: is it 'redis:' rather than 'rediss:'?"),
        ("localhost", "closed", "ended the connection during the TLS handshake"),
    ],
)
def test_what_is_wrong(faults, monkeypatch, host, fault, said):
    if fault != "untrusted":
        monkeypatch.setenv("SSL_CERT_FILE", faults.trusted(fault))
    with faults.serving("redis", fault) as port, pytest.raises(StoreUnreachable) as caught:
        abate.open_store(f"rediss://{host}:{port}/0").queue("orders").depth()
    assert said in str(caught.value)
