"""Clients and the shelter: requests wait while their service is down."""

import httpx
import pytest

import abate
import abate.clients.httpx


def test_a_shelter_holds_first_attempts_back_too():
    """After a 503 that asks for a minute, and nothing else, no request of the same shelter reaches the server."""
    seen = []

    def answer(request):
        seen.append(request.url.path)
        return httpx.Response(503, headers={"Retry-After": "60"})

    policy = abate.Policy(on=abate.http.transient, max_attempts=1, shelter=abate.Shelter(patience=2.0))
    with httpx.Client(transport=abate.clients.httpx.Transport(policy, httpx.MockTransport(answer))) as client:
        assert client.get("http://orders.example/first").status_code == 503
        with pytest.raises(abate.Refused), abate.deadline(0.5):
            client.get("http://orders.example/second")
    assert seen == ["/first"]
