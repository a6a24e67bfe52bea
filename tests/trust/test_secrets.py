"""Secrets in errors, URLs and names reach nothing that abate writes."""

import io
import json
import logging
import subprocess
import sys
import time
from urllib.parse import quote

import httpx
import pytest
import requests
import structlog
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

import abate
import abate.clients.requests
from abate import event_sinks, events, observe, redact
from abate.cli import main
from abate.observe.page.recent_activity import RecentActivity
from abate.observe.page.state import PageState
from abate.redact import MAX_SCANNED, described, one_line, redacted, short_repr, trace
from abate.testing import Script

SECRET = "hunter2-S3cr3t"
TOKENS = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=1, max_size=12).map(
    lambda letters: f"S3cr3t{letters}7"
)
"""Secrets that can be told from the rest of a text."""
ODD = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=8)
"""What may stand in a secret beside letters."""
WORDS = st.lists(
    st.sampled_from(["failed", "for", "GET", "503", "the", "db", "(see", "it)", "'x'", "a=b", "ok?", "#1"])
)


def planted(secret, odd):
    """Texts that have the secret where secrets are looked for."""
    # what is no part of a URL or of a value that is not quoted
    bare = secret + "".join(letter for letter in odd if letter not in "\"'<>\\") + secret
    escaped = quote(odd, safe="")
    return [
        f"https://{secret}@api.example/x",
        f"https://bot:{secret}{escaped}@api.example/x",
        f"redis://:{secret}{escaped}@cache:6379/0",
        f"postgresql://me:x{bare}@db/work",
        f"redis://me:12/{bare}@cache:6379/0",
        f"amqp://me:12#{bare}@mq",
        f"Postgres+Driver://me:12?{bare}@db",
        f"cookie=theme=dark; sid={secret}; more={secret}",
        f"<Cookies[<Cookie sid={secret} for shop.example />]>",
        f"auth=('me', '{secret}')",
        repr({"auth": ["me", f"){secret}"], "id": 1}),
        f"get(cookies={{'sid': ('{secret}', 1)}})",
        repr({"cookies": {"sid": secret}, "id": 1}),
        f"https://api.example/x?token={secret}&q={escaped}{secret}",
        f"https://api.example/x?{secret}",
        f"https://api.example/#access_token={secret}",
        f"Max retries exceeded with url: /geocode?q={escaped}&api_key={secret} (Caused by nothing)",
        f"host=db user=me password={bare} dbname=work",
        f"host=db password='{secret} {secret}' dbname=work",
        f'{{"client_secret": "{secret}", "id": 1}}',
        repr({"password": secret, "user": "me"}),
        f"Authorization: Bearer {secret}{secret}",
        f"sent with Bearer {secret}.{secret}",
        repr({"Authorization": f"Basic {secret}"}),
        f"AWS_SECRET_ACCESS_KEY={secret}",
        f"AccountName=shop;AccountKey={secret}==;EndpointSuffix=core.example",
        f"Driver=x;UID=sa;PWD={{my {secret}}};Server=db",
        f"password='it''s {secret}' host=db",
        f"user: 'me', password: '{secret}'",
        f'{{"private_key": "-----BEGIN {secret}", "pin": 1}}',
        f'{{"password":\n    "{secret}"}}',
        f"DB_PASS = {secret}",
        f"authorization = Basic {secret}==",
        f"'password' => '{secret}'",
        f"Abate-Secret: {secret}",
        f"X-Vault-Token: {secret} {secret}",
        repr([(b"abate-secret", secret.encode()), (b"accept", b"*/*")]),
        repr([("Cookie", f"sid={secret}")]),
        repr(subprocess.CalledProcessError(1, ["mysql", "--password", secret, "shop"])),
    ]


@given(TOKENS, ODD, WORDS, st.integers(0, len(planted("", "")) - 1), WORDS)
def test_a_planted_secret_is_hidden(secret, odd, before, which, after):
    """Wherever it stands in a text, as text and as `repr`, and what was hidden once is not changed again."""
    text = " ".join([*before, planted(secret, odd)[which], *after])
    for written in (
        redacted(text),
        redacted(repr(text)),
        one_line(text),
        short_repr(OSError(text)),
        described(OSError(text)),
    ):
        assert secret not in written
        assert redacted(written) == written
    assert secret not in trace(OSError(text))


@given(TOKENS, st.integers(0, 3000), st.integers(0, 60))
def test_a_secret_on_which_a_text_is_cut_is_hidden(secret, longest, shift):
    """Neither the beginning of a secret nor its end is shown."""
    text = "x " * (MAX_SCANNED // 2 - 30) + "y" * shift + f" https://{secret}@api.example/?{secret}"
    assert secret[:7] not in one_line(text, 10 * MAX_SCANNED)
    assert secret[:7] not in trace(OSError(text))
    text = "x" * longest + f" https://bot:{secret}@api.example/"
    assert secret[:7] not in one_line(text, 1500)


def test_of_a_huge_error_text_the_beginning_is_in_the_traceback():
    """A program may put a whole response into an error: to look through 100 MB would hold it up for a minute."""
    try:
        raise OSError("begins so " + "x" * 10 * MAX_SCANNED) from ValueError("y" * 10 * MAX_SCANNED)
    except OSError as error:
        written = trace(error, "  ")
    assert "  OSError: begins so xxx" in written
    assert "in test_of_a_huge_error_text" in written
    assert len(written) < 3 * MAX_SCANNED
    error = OSError("down")
    error.__notes__ = ["z" * 1000] * 10_000
    assert len(trace(error)) < 5 * MAX_SCANNED


@pytest.mark.parametrize(
    "text",
    [
        "",
        "connection refused",
        "GET https://api.example:8443/orders/42 took 3 s",
        "http://[::1]:8080/ and http://[::1]/",
        "https://registry.example/@types/node is at https://h/#top",
        "https://registry.example:8443/@types/node and s3://bucket:1/me@example.org",
        "redis://cache:6379/0 and amqp://mq:5672/jobs, said me@example.org",
        "auth: failed (see below), oauth = 2, cookies: none",
        "postgresql://db1:5432,db2:5433/work",
        repr(OSError("503 for url 'http://127.0.0.1:46379'\nFor more information ask")),
        "is x=1? who knows: a=b, c == d",
        "Basic authentication failed; the bearer of bad news",
        "the password is wrong: password: too short",
        "mail me@example.org about C:/temp, 12:30 and a://b",
        "KeyError: 'orders/42'",
        "tokens=5 tokenize=yes",
        "unexpected token: '}', bypass=yes, Idempotency-Key: 5",
        "one of ('user', 'password') and ['--token', 5]; --token is missing",
        "https://h/p? Really?",
        "größer – ✓",
    ],
)
def test_ordinary_text_passes_unchanged(text):
    """What has no secret is written as it is."""
    assert redacted(text) == one_line(text) == text


@pytest.mark.parametrize("url", ["http://bot:hunter2'\nx@api.example/", "http://bot:hunter2'\tx"])
def test_what_stands_behind_a_quote_in_a_repr_may_be_a_secret(url):
    """The end of a quoted URL is not guessed if an @ follows, or if what stands before it is no port."""
    assert "hunter2" not in one_line(repr(OSError(f"no answer from '{url}'")))


@given(st.text(st.characters(exclude_characters=":=?#"), max_size=200))
def test_text_without_urls_and_values_passes_unchanged(text):
    """A secret needs a sign that says so."""
    if "earer" not in text.lower() and "asic" not in text.lower() and "IA" not in text:
        assert redacted(text) == text


@given(st.text(max_size=300))
def test_any_text_can_be_written(text):
    """Nothing fails, and what was hidden once stays as it is."""
    assert redacted(redacted(text)) == redacted(text)
    assert one_line(text).isprintable()


HOSTILE = [
    *("://", "://a:b,", "http://a:b ", "http://u@", "[://", "://[", "://x?", "://x:y\t", ":\\/\\/", "http://a,"),
    *("redis://a:1/", "redis://a:1/@", "auth=(", "auth=('", 'auth=["', "auth={(", "cookie=a; ", "cookies=[{"),
    *("?", "?a ", "#a=", "?a=b#", "password=", "password='", "password=\\'", '"password": "', "token", "=d", "\\"),
    *(
        "Bearer ",
        "Bearer a1",
        "Authorization: ",
        "('",
        "('password', '",
        "'--",
        "a-",
        "password={",
        "password=''",
        "cookie:",
        "AKIA",
        "AKIAAAAAAAAAAAAAAAAA",
        "\n",
        "\x1b",
        "a",
        " ",
    ),
]


@pytest.mark.parametrize("piece", HOSTILE, ids=repr)
def test_hostile_text_takes_time_in_proportion(piece):
    """Eight times the text takes about eight times as long, not sixty-four times."""

    def took(length):
        text = piece * (length // len(piece))
        began = time.process_time()
        redacted(text)
        return time.process_time() - began

    took(1000)
    short = min(took(31_250) for _ in range(3))
    assert min(took(250_000) for _ in range(2)) < 40 * max(short, 0.005)


# -- everything that is written


URL = f"https://bot:{SECRET}@api.example/x?token={SECRET}"


def failing():
    """Errors as libraries make them."""
    answer = httpx.Response(503, request=httpx.Request("GET", URL))
    try:
        answer.raise_for_status()
    except httpx.HTTPStatusError as error:
        yield error
    session = requests.Session()
    session.mount("http://", abate.clients.requests.Adapter(abate.Policy(name="maps", on=OSError, max_attempts=1)))
    try:
        session.get("http://127.0.0.1:1/geocode", params={"q": "x", "api_key": SECRET})
    except requests.ConnectionError as error:
        yield error
    yield OSError(f"connection failed: host=db user=me password={SECRET}")
    yield ConnectionError(URL)


EVENTS = [
    lambda error: events.FirstFailure(URL, "blip", error),
    lambda error: events.Retry(URL, 1, 0.1, "blip", None, error),
    lambda error: events.BudgetRefused(URL, URL, 1),
    lambda error: events.GaveUp(URL, "attempts", 3, 0.1, error),
    lambda error: events.LayeredRetry(URL, URL),
    lambda error: events.ShelterChanged(URL, URL, "storm", 1, 1.0),
    lambda error: events.Worked(URL, URL, "retry", 0.1, 1, error),
    lambda error: events.Buried(URL, URL, "fatal", str(error)),
    lambda error: events.WorkerCrashed(URL, URL, error),
    lambda error: events.SourceFailed(URL, URL, error, 1.0),
    lambda error: events.StoreDegraded(URL, True, error),
    lambda error: events.LeaseLost(URL, URL),
    lambda error: events.Waited(URL, 1.0),
]


@pytest.fixture
def written():
    """A stream with what is logged."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    before = logging.getLogger("abate").level
    logging.getLogger("abate").setLevel(logging.DEBUG)
    yield stream
    logging.getLogger("abate").setLevel(before)
    logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize("error", list(failing()), ids=lambda error: type(error).__name__)
def test_no_output_has_a_secret(error, written, capsys):
    """Logs, structlog, page, metrics, spans, reports and notes of every event with that error, key and name."""
    registry, reader, spans = CollectorRegistry(), InMemoryMetricReader(), InMemorySpanExporter()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    recent, entries, records = RecentActivity(), [], []
    catch = logging.Handler()
    catch.emit = records.append
    logging.getLogger("abate").addHandler(catch)
    sinks = [
        observe.LoggingSink(every=True),
        observe.LoggingSink(),
        observe.StructlogSink(structlog.testing.CapturingLogger(), every=True),
        observe.PrometheusSink(registry),
        observe.OpenTelemetrySink(MeterProvider([reader])),
        recent,
        lambda event: (_ for _ in ()).throw(error),  # it fails, which is logged with its traceback
    ]
    policy = abate.Policy(name=URL, on=Exception, max_attempts=2, backoff=[0.0], raises="exhausted")
    for sink in sinks:
        observe.install(sink)
    try:
        with tracing.get_tracer("test").start_as_current_span("x"):
            for make in EVENTS:
                event_sinks.emit(make(error))
            with pytest.raises(abate.RetryExhausted) as raised:
                policy.call(Script(error, error))
        board = PageState(recent, abate.clock.current())
        board.refresh()
        page = board.frame() + board.history()
    finally:
        for sink in sinks:
            observe.remove(sink)
        logging.getLogger("abate").removeHandler(catch)
    entries = [repr(call) for call in sinks[2].logger.calls]
    (span,) = spans.get_finished_spans()
    report = abate.report(raised.value)
    outputs = {
        "log": written.getvalue(),
        "extra": repr([getattr(record, "abate", None) for record in records]),
        "structlog": "".join(entries),
        "page": page.decode(),
        "prometheus": generate_latest(registry).decode(),
        "otel": reader.get_metrics_data().to_json(),
        "spans": repr([(each.name, dict(each.attributes)) for each in span.events if each.name.startswith("abate")])
        + repr({name: value for name, value in span.attributes.items() if name.startswith("abate")}),
        "report": str(report) + str(raised.value),
        "notes": "".join(note for note in getattr(error, "__notes__", []) if note.startswith("abate")),
        "stderr": "".join(capsys.readouterr()),
    }
    assert [name for name, text in outputs.items() if SECRET in text] == []
    for name in ("log", "extra", "structlog", "page", "prometheus", "otel", "report"):
        assert "api.example" in outputs[name], name
    assert raised.value.__cause__ is error


def test_dead_letters_hold_no_secret(tmp_path, written, capsys):
    """Reason and trace are redacted before they are stored, the terminal shows none; the key stays as it is."""
    url = f"sqlite:///{tmp_path}/work.db"
    with abate.open_store(url) as store:
        queue = store.queue("orders")
        queue.add(URL)

        @abate.consumer(name="orders")
        def handle(message):
            raise abate.PermanentFailure(f"refused by {URL}")

        handle.run(queue, drain=True)
        (letter,) = queue.dead()
        assert (letter.key, letter.reason) == (URL, "refused by https://***@api.example/x?***")
        assert SECRET not in letter.trace
        queue.redrive([URL])
        (message,) = queue.receive()
        queue.bury(message, f"by hand: {URL}", trace=URL)
        assert SECRET not in repr(queue.dead()[0].reason + queue.dead()[0].trace)
    assert SECRET not in written.getvalue()
    assert main(["queue", "dead", url, "--trace"]) == 0
    assert SECRET not in "".join(capsys.readouterr())
    assert main(["queue", "dead", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["key"] == URL


# -- stores


@pytest.mark.parametrize(
    "url",
    [
        b"redis://me:hunter2-S3cr3t@cache/0",
        bytearray(b"redis://me:hunter2-S3cr3t@cache/0"),
        ["redis://me:hunter2-S3cr3t@cache/0"],
        {"url": "redis://me:hunter2-S3cr3t@cache/0"},
        "hunter2-S3cr3t",
        "host=db password=hunter2-S3cr3t port=5432 options=a:b",
        "mysql://me:hunter2-S3cr3t@db/work",
        "me:hunter2-S3cr3t@db/work",
        "hunter2-S3cr3t:x@db",
        "memory://me:hunter2-S3cr3t@x",
        "sqlite://me:hunter2-S3cr3t@x/work.db",
        "redis://me:hunter2-S3cr3t@cache/nonsense",
        "redis://me:hunter2-S3cr3t@cache:port/0",
        "redis://me:hunter2-S3cr3t@127.0.0.1:1/0",
        "postgresql://me:hunter2-S3cr3t@127.0.0.1:1/work?connect_timeout=1",
        "postgresql:me:hunter2-S3cr3t@db",
        "unix://me:hunter2-S3cr3t@x",
    ],
    ids=str,
)
def test_a_wrong_store_never_shows_its_password(url):
    """Whatever type it has, and whatever is wrong with it."""
    with pytest.raises((TypeError, ValueError, abate.errors.AbateError)) as raised:
        abate.open_store(url)
    found = raised.value
    while found is not None:
        assert SECRET not in str(found)
        found = found.__cause__


@pytest.mark.parametrize("url", [f"redis://me:{SECRET}@cache/0", f"redis://me:{SECRET}@cache/0".encode()], ids=str)
@pytest.mark.parametrize(
    "setting", ["budget", "shelter", "gate", "on", "timeout", "attempts", "raises", "backoff", "clock"]
)
def test_a_store_in_the_place_of_another_setting_never_shows_its_password(url, setting):
    """The error names the value, without its secrets."""
    with pytest.raises((TypeError, ValueError), match=setting) as raised:
        abate.Policy(**{"on": OSError, setting: url})
    assert SECRET not in str(raised.value)
    with pytest.raises(TypeError, match="store must be a store or the URL of one") as raised:
        abate.controller(name="orders", store=url.encode() if isinstance(url, str) else url)(print)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("command", [["page", "--port", "0"], ["run"]], ids=str)
def test_a_url_in_the_place_of_a_program_never_shows_its_password(command, capsys):
    """The line that refuses it hides it as any other."""
    assert main([*command, f"http://me:{SECRET}@shop"]) == 2
    said = capsys.readouterr()
    assert "expected a module and a name in it" in said.err
    assert SECRET not in said.out + said.err


def test_a_command_finds_its_store_in_the_environment_or_a_file(tmp_path, monkeypatch, capsys):
    """``env:NAME`` and ``file:PATH`` wherever a command takes a URL."""
    url = f"sqlite:///{tmp_path}/work.db"
    with abate.open_store(url) as store:
        store.queue("orders").add("42")
    (tmp_path / "secret").write_text(f"{url}\n")
    monkeypatch.setenv("WORK_STORE", url)
    for given_as in ("env:WORK_STORE", f"file:{tmp_path}/secret"):
        assert main(["queue", "ls", given_as]) == 0
        assert "orders" in capsys.readouterr().out
    (tmp_path / "app.py").write_text("import abate\n@abate.consumer()\ndef orders(message):\n    print(message.key)\n")
    for command in (
        ["run", "app:orders", "--store", "env:WORK_STORE", "--drain"],
        ["exec", "--budget", "b", "--store", f"file:{tmp_path}/secret", "--", "true"],
    ):
        ended = subprocess.run(
            [sys.executable, "-m", "abate", *command], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert ended.returncode == 0, ended.stderr
        assert "not shared" not in ended.stderr
    with abate.open_store(url) as store:
        assert store.queue("orders").depth().ready == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty: expected the URL of a store in it"),
        ("hunter2-S3cr3t and more", "must hold the URL of a store and nothing else"),
        ("env:hunter2-S3cr3t", "must hold the URL of a store and nothing else"),
        ("hunter2-S3cr3t" * 2000, "is longer than 16384 bytes"),
        (b"\xff hunter2-S3cr3t", "can't be read: it is not UTF-8"),
        (None, "can't be read: No such file or directory"),
        ("mysql://me:hunter2-S3cr3t@db/work", "there is no store 'mysql:'"),
        ("redis://me:hunter2-S3cr3t@127.0.0.1:1/0", "refuses connections"),
    ],
    ids=str,
)
def test_what_a_file_holds_is_not_shown(tmp_path, capsys, content, said):
    """The error names the file, and what was expected in it."""
    path = tmp_path / "url"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["queue", "ls", f"file:{path}"]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert SECRET not in told


@pytest.mark.parametrize(("content", "said"), [(None, "is not set"), ("", "is empty"), (" ", "is empty")])
def test_a_variable_that_is_empty_is_not_said_to_be_missing(monkeypatch, capsys, content, said):
    """The two mistakes have different remedies."""
    monkeypatch.delenv("WORK_STORE", raising=False)
    if content is not None:
        monkeypatch.setenv("WORK_STORE", content)
    assert main(["queue", "ls", "env:WORK_STORE"]) == 2
    expected = f"the environment variable WORK_STORE {said}: expected the URL of a store in it"
    assert expected in capsys.readouterr().err


def test_refused_arguments_are_shown_without_secrets(capsys):
    """A URL in the wrong place is on the terminal's record, too."""
    with pytest.raises(SystemExit):
        main(["queue", "ls", "memory:", "redis://me:hunter2-S3cr3t@cache/0\x1b[2J"])
    told = capsys.readouterr().err
    assert "redis://***@cache/0\\x1b[2J" in told
    assert SECRET not in told


def test_a_module_that_fails_shows_its_traceback_without_secrets(tmp_path, monkeypatch, capsys):
    """What `abate run` prints of it is redacted."""
    (tmp_path / "leaky.py").write_text(f"raise OSError('{URL}')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["run", "leaky:x"]) == 2
    told = capsys.readouterr().err
    assert "OSError: https://***@api.example/x?***" in told


def test_a_signal_handler_that_writes_while_the_patterns_are_compiled_hides_all(monkeypatch):
    """It does not compile them again: with a timer, handlers would interrupt each other for ever."""
    compiled, within = redact._patterns, []

    def interrupted():
        within.append(redact.redacted("down: http://me:hunter2@db/"))
        return compiled()

    monkeypatch.setattr(redact, "_compiled", [])
    monkeypatch.setattr(redact, "_patterns", interrupted)
    assert redact.redacted("down: http://me:hunter2@db/") == "down: http://***@db/"
    assert within == ["***"]
    assert redact.redacted("down: http://me:hunter2@db/") == "down: http://***@db/"
    assert len(within) == 1
