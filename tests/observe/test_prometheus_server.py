"""abate's metrics, alerting rules and dashboard in a real Prometheus."""

import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from importlib.resources import files
from pathlib import Path

import pytest

from abate.cli import main
from abate.observe.prometheus import METRICS

GUARD = 30.0
"""Seconds after which a test fails because something hangs."""

HERE = Path(__file__).parent
FILES = files("abate.observe") / "files"
DASHBOARD = json.loads((FILES / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]

SUFFIXES = {"CounterMetricFamily": ("_total",), "HistogramMetricFamily": ("_bucket", "_sum", "_count")}
EXPOSED = {name + suffix for name, (kind, _, _) in METRICS.items() for suffix in SUFFIXES.get(kind.__name__, ("",))}

CONFIG = """
global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}}
rule_files: [{rules}]
scrape_configs:
  - job_name: shop
    static_configs: [targets: ["127.0.0.1:{port}"]]
"""


def tool(name):
    """Return the path of a program of Prometheus."""
    found = shutil.which(name)
    assert found is not None, f"{name} is needed: install the Debian package prometheus"
    return found


def promtool(*words, **options):
    """Run promtool, check that it succeeds, and return its output."""
    done = subprocess.run([tool("promtool"), *words], capture_output=True, text=True, timeout=GUARD, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def fetched(url):
    with urllib.request.urlopen(url, timeout=GUARD) as response:
        return response.read().decode()


def until(condition):
    """Poll until the condition is true: another process brings it about."""
    guard = time.monotonic() + GUARD
    while not (found := condition()):
        assert time.monotonic() < guard, "it never came about"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def shop():
    """Run the program, and return the URL of its metrics."""
    with subprocess.Popen(
        [sys.executable, str(HERE / "shop.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            yield f"http://127.0.0.1:{int(program.stdout.readline())}/metrics"
            assert program.poll() is None
        finally:
            program.stdin.close()
            try:
                assert program.wait(GUARD) == 0
            finally:
                program.kill()


@pytest.fixture(scope="module")
def query(shop, tmp_path_factory):
    """Run a Prometheus that scrapes the program and evaluates the rules; return a function that queries it."""
    place = tmp_path_factory.mktemp("prometheus")
    (place / "alerts.yml").write_text((FILES / "alerts.yml").read_text())
    config = place / "prometheus.yml"
    config.write_text(CONFIG.format(rules=place / "alerts.yml", port=urllib.parse.urlsplit(shop).port))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    words = (
        f"--config.file={config}",
        f"--storage.tsdb.path={place / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )

    def get(path):
        try:
            return json.loads(fetched(f"http://127.0.0.1:{port}/api/v1/{path}"))["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(error.read().decode()) from None

    def ask(expression):
        return get(f"query?{urllib.parse.urlencode({'query': expression})}")["result"]

    def ready():
        try:
            return fetched(f"http://127.0.0.1:{port}/-/ready")
        except urllib.error.HTTPError as error:  # it is still starting (503)
            error.close()
            return ""
        except OSError:  # the port is not open yet
            return ""

    def scraped():
        return ask("count_over_time(up[1m]) >= 5 and up == 1")  # a rate needs several samples

    ask.get = get
    with open(place / "log", "w") as log, subprocess.Popen([tool("prometheus"), *words], stderr=log) as process:
        try:
            until(ready)
            until(scraped)
            yield ask
        finally:
            process.kill()


def test_promtool_accepts_the_metrics(shop):
    """Names, units, types and help texts follow the conventions."""
    assert promtool("check", "metrics", input=fetched(shop)).strip() == ""


def test_a_real_program_exposes_every_metric(shop):
    """Each metric has values once everything that is measured has happened."""
    found = set(re.findall(r"^(abate_\w+?)(?:\{.*)? \S+$", fetched(shop), re.M))
    assert found == EXPOSED


def test_prometheus_answers_queries(query):
    """The answers match what the program did."""
    (recovered,) = query('abate_calls_total{policy="orders", outcome="recovered"}')
    assert float(recovered["value"][1]) >= 1
    (share,) = query(
        'sum(abate_calls_total{policy="orders", outcome="recovered"}) / sum(abate_calls_total{policy="orders"})'
    )
    assert float(share["value"][1]) == pytest.approx(1 / 3, abs=0.1)
    (state,) = query("abate_shelter_state == 1")
    assert state["metric"]["shelter"] == "shop"


def test_prometheus_evaluates_the_rules(query):
    """All rules are loaded and healthy, and the alert about layered retries fires at once in this program."""

    def fired():
        (group,) = query.get("rules")["groups"]
        assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}, group["rules"]
        return [rule for rule in group["rules"] if rule["state"] == "firing"]

    fired_first = until(fired)
    assert "AbateLayeredRetries" in {rule["name"] for rule in fired_first}


def test_promtool_accepts_the_rules():
    """It finds all rules that are shipped."""
    assert "SUCCESS: 7 rules found" in promtool("check", "rules", str(FILES / "alerts.yml"))


def test_every_alert_fires_when_it_should_and_not_otherwise(tmp_path):
    """promtool runs its own tests on the shipped rules."""
    shutil.copy(HERE / "alerts_test.yml", tmp_path)
    shutil.copy(str(FILES / "alerts.yml"), tmp_path)
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml", cwd=tmp_path)


def test_every_alert_is_tested():
    """Each rule has a case in which it fires."""
    alerts = set(re.findall(r"alert: (\w+)", (FILES / "alerts.yml").read_text()))
    cases = re.findall(r"alertname: (\w+)\s+exp_alerts:\s+-", (HERE / "alerts_test.yml").read_text())
    assert set(cases) == alerts


def names(text):
    """Return the names of metrics in a text."""
    return set(re.findall(r"\babate_\w+", text))


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_panel_shows_something(query, expression):
    """Prometheus answers each expression of the dashboard with values for this program."""
    assert names(expression) <= EXPOSED
    filled = re.sub(r"\$(job|policy|queue)\b", ".*", expression).replace("$__rate_interval", "5s")
    found = query(filled)
    assert found or "< Inf" in filled


def test_the_dashboard_shows_every_metric():
    """Panels and rules use existing metrics, and no metric is left out of the panels."""
    shown = names(" ".join(EXPRESSIONS))
    assert {name for name in METRICS if not any(known.startswith(name) for known in shown)} == set()
    assert names((FILES / "alerts.yml").read_text()) <= EXPOSED


def test_the_dashboard_can_be_imported():
    """It leaves the data source to the user; panels have units, and don't overlap."""
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == [
        "datasource",
        "job",
        "policy",
        "queue",
    ]
    assert DASHBOARD["id"] is None
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken = set()
    for panel in PANELS:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["description"]
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


@pytest.mark.parametrize(("word", "name"), [("rules", "alerts.yml"), ("dashboard", "dashboard.json")])
def test_the_command_prints_the_files(capsys, word, name):
    """`abate observe rules` and `abate observe dashboard` print the files as they are."""
    assert main(["observe", word]) == 0
    assert capsys.readouterr().out == (FILES / name).read_text()


def test_the_command_needs_a_choice(capsys):
    """Without one, the usage error lists the choices."""
    with pytest.raises(SystemExit):
        main(["observe"])
    assert "WHAT" in capsys.readouterr().err
