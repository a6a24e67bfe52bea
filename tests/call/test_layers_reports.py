"""`abate.report` of the responses that clients return after giving up, and of errors that are raised from them."""

import types

import httpx
import pytest
import requests
import urllib3

import abate

REPORT = abate.Report("orders", 3, 1.5, "attempts")


def httpx_response(report=None):
    request = httpx.Request("GET", "http://api.example")
    return httpx.Response(503, request=request, extensions={} if report is None else {"abate_report": report})


def requests_response(report=None):
    response = requests.Response()
    response.status_code, response.url = 503, "http://api.example"
    if report is not None:
        response.abate_report = report
    return response


def urllib3_response(report=None):
    response = urllib3.HTTPResponse(status=503)
    if report is not None:
        response.abate_report = report
    return response


RESPONSES = pytest.mark.parametrize("response", [httpx_response, requests_response, urllib3_response])


@RESPONSES
def test_a_response_has_the_report_of_its_call(response):
    """In httpx's extensions, or as an attribute."""
    assert abate.report(response(REPORT)) == REPORT


@RESPONSES
def test_a_response_that_was_not_given_up_on_has_none(response):
    """None, and no error: most responses are such."""
    assert abate.report(response()) is None


@pytest.mark.parametrize("response", [httpx_response, requests_response])
def test_the_error_of_a_bad_status_has_the_report_of_its_response(response):
    """`raise_for_status` raises an error without a report of its own; also one that is raised from it."""
    with pytest.raises(RuntimeError) as caught:
        try:
            response(REPORT).raise_for_status()
        except (httpx.HTTPStatusError, requests.HTTPError) as error:
            assert abate.report(error) == REPORT
            raise RuntimeError("no orders") from error
    assert abate.report(caught.value) == REPORT


def test_the_report_of_the_error_itself_comes_first():
    """A policy around `raise_for_status` has given up later than the client."""
    policy = abate.Policy(name="outer", on=ConnectionError)
    with pytest.raises(httpx.HTTPStatusError) as caught:
        policy.call(httpx_response(REPORT).raise_for_status)
    assert abate.report(caught.value).policy == "outer"


@pytest.mark.parametrize("attached", ["a text", 42, {}])
def test_what_is_no_report_is_not_returned(attached):
    """Other libraries may use the name, too."""
    assert abate.report(httpx_response(attached)) is None
    assert abate.report(types.SimpleNamespace(status=503, abate_report=attached)) is None


def test_a_property_that_raises_is_none():
    """httpx's `request` raises while it is not set, and so may others."""

    class Odd(Exception):
        @property
        def response(self):
            raise RuntimeError("not set")

    assert abate.report(Odd()) is None
