"""Every name behind which a value is hidden, in every way of writing one."""

import json

import pytest

from abate.redact import redacted

NAMES = (
    *("password", "passwd", "passphrase", "pass", "pwd", "secret", "token", "credential", "credentials", "signature"),
    *("authorization", "cookie", "api_key", "api-key", "apikey", "access_key", "secret-key", "private_key"),
    *("AccountKey", "shared_key", "signing-key", "encryption_key"),
)
HEADERS = (
    *("Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie", "X-Vault-Token", "X-Client-Secret"),
    *("X-Db-Password", "X-Api-Key", "X-Goog-Api-Key", "Ocp-Access-Key", "X-ApiKey"),
)
VALUE = "hunter2"


@pytest.mark.parametrize("prefix", ["", "my_", "DB_"])
@pytest.mark.parametrize("name", NAMES)
def test_the_value_of_a_name_is_hidden(prefix, name):
    """In lower and upper case, also where the name has words before it."""
    for full in (prefix + name, (prefix + name).upper()):
        for text in (
            f"{full}={VALUE} failed",
            f"{full} = '{VALUE} {VALUE}'",
            f"{full}: '{VALUE}'",
            json.dumps({full: VALUE}),
            json.dumps({full: 12345678}),
            repr({full: VALUE}),
            repr([(full, VALUE)]),
            repr(["shop", f"--{full}", VALUE]),
        ):
            assert VALUE not in redacted(text), text
            assert "12345678" not in redacted(text), text


@pytest.mark.parametrize("name", HEADERS)
def test_the_value_of_a_header_is_hidden(name):
    """To the end of its line."""
    for full in (name, name.lower(), name.upper()):
        assert redacted(f"{full}: {VALUE} and {VALUE}\nfailed") == f"{full}: ***\nfailed"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "Basic"])
def test_the_word_after_a_scheme_is_hidden(scheme):
    """If it looks like a token."""
    assert redacted(f"sent {scheme} aGVsbG8hunter2=") == f"sent {scheme} ***"
    assert redacted(f"the {scheme} contract was refused") == f"the {scheme} contract was refused"


@pytest.mark.parametrize("kind", ["AKIA", "ASIA"])
def test_access_key_ids_of_aws_are_hidden(kind):
    """By their form."""
    assert redacted(f"for {kind}IOSFODNN7EXAMPLE.") == "for ***."
