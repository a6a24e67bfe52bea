"""Reports: one page that needs nothing else, pictures for each kind of study, the same bytes each time."""

import math
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from base64 import b64decode
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate.sim import Scenario, load_scenario, run_study
from abate.sim.report import Hysteresis, RecoveryMap, hysteresis, recovery_map, write_picture, write_report
from abate.sim.report.choose_pictures import choose_pictures
from abate.sim.report.labels import one_line
from abate.sim.report.time_pictures import STRETCHES, Span, span_of
from abate.sim.study import Study, estimate

VOID = {"meta", "br", "hr", "img", "input", "link"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def scenario(name="small", **tables) -> Scenario:
    """A small scenario: clients that keep calling, a service, an outage of two seconds."""
    document = {
        "run": {"horizon": 20.0},
        "clients": {"count": 20},
        "policy": {"max_attempts": 3},
        "services": {"api": {"workers": 4, "service_time": 0.05}},
        "triggers": [{"kind": "error", "at": 5.0, "for": 2.0}],
        "variants": {"retried": {}, "once": {"policy": {"max_attempts": 1}}},
    }
    document |= tables
    return Scenario(name, f"{name}.toml", {key: value for key, value in document.items() if value is not None})


class Page(HTMLParser):
    """Reads a page: are its tags balanced, what does it refer to, what does it say?"""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open, f"closes {tag}, and nothing is open"
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.attributes if key == name]


def page(study, folder, **given) -> tuple[Page, str]:
    file = folder / "report.html"
    write_report(study, file, **given)
    text = file.read_text(encoding="utf-8")
    return Page(text), text


@pytest.fixture(scope="module")
def study() -> Study:
    return run_study(scenario(**{"assert": {"max_amplification": 1.01, "min_success": 0.1}}), seeds=2, raster=True)


def recoveries() -> RecoveryMap:
    cells = {"retried": ((estimate([0.0]), estimate([math.inf])), (estimate([4.5]), estimate([3.0, math.inf])))}
    return RecoveryMap((10.0, 20.0), (1.0, 2.0), cells)


def loop() -> Hysteresis:
    up = {"retried": (estimate([10.0]), estimate([20.0]))}
    return Hysteresis((10.0, 20.0), 20.0, up, {"retried": (estimate([1.0]), estimate([20.0]))})


# -- the page


def test_a_page_needs_nothing_but_itself(study, tmp_path):
    """No script, no link, and nothing that is fetched: only data inside the page and places in it are referred to."""
    read, text = page(study, tmp_path, surveys=[recoveries(), loop()])
    assert not {"script", "link", "iframe", "base"} & set(read.tags)
    assert all(value.startswith("data:image/svg+xml;base64,") for value in read.values("src"))
    assert not read.values("href")
    assert "url(" not in text
    assert "http://" not in text
    assert "https://" not in text
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_page_says_what_it_is(study, tmp_path):
    """It has a language, a title, a viewport, and forbids itself everything from outside."""
    read, text = page(study, tmp_path)
    assert read.values("lang") == ["en"]
    assert "<title>small – abate sim</title>" in text
    assert "width=device-width, initial-scale=1" in read.values("content")
    assert any(value.startswith("default-src 'none'") for value in read.values("content"))


def test_every_picture_is_described(study, tmp_path):
    """Each picture has a text of its own for those who cannot see it, and says it for each of its panels."""
    read, _ = page(study, tmp_path, surveys=[recoveries(), loop()])
    texts = read.values("alt")
    assert len(texts) == len(set(texts)) == read.tags.count("img") == 4
    pictures = choose_pictures(study, surveys=[recoveries(), loop()])
    assert all(panel.alt in text for picture, text in zip(pictures, texts, strict=True) for panel in picture.panels)
    for source in read.values("src"):
        assert ElementTree.fromstring(b64decode(source.partition(",")[2])).tag.endswith("svg")


def test_a_page_has_the_figures_the_assertions_and_the_outlook(study, tmp_path):
    """Every case has its mean ± interval; each assertion is said to hold or not; each service has its range."""
    read, _ = page(study, tmp_path)
    for result in study.results:
        assert f"{result.case.name} {result.measures['calls']} " in read.text
        assert str(result.measures["amplification"]) in read.text
    assert f"retried max_amplification = 1.01 {study.results[0].measures['amplification']} ✗ does not hold" in read.text
    assert f"once max_amplification = 1.01 {study.results[1].measures['amplification']} ✓ holds" in read.text
    assert read.text.count("✓ holds") == 3
    assert "(capacity 80, offered 20)" in read.text


def test_what_a_file_says_is_shown_and_does_nothing(tmp_path):
    """Names, texts, notes and settings with markup in them are text; letters of other scripts and dollars are, too."""
    evil = "<script>alert(1)</script>"
    given = scenario(
        evil,
        about=f"{evil} & 'quotes' \"too\", `code`\n\n{evil}",
        services={evil: {"service_time": 0.01}},
        variants={f"{evil}\n\x01": {}, '$x_1$ 漢字 " id="a" #d55e00': {}},
        **{"assert": {"max_p99": 9.0}},
    )
    found = run_study(given, seeds=1, raster=True)
    sample = found.results[0].samples[0]
    noted = type(sample)(**{**vars(sample), "notes": (f"a note {evil}",)})
    first = type(found.results[0])(found.results[0].case, (noted,))
    read, text = page(Study(given, (first, *found.results[1:])), tmp_path)
    assert "script" not in read.tags
    assert "<script" not in text
    assert f"a note {evil}" in read.text
    assert read.text.count(evil) > 5
    assert "<code>code</code>" in text
    assert '$x_1$ 漢字 " id="a" #d55e00' in read.text
    assert "\x01" not in text
    for suffix in ("svg", "png"):
        write_picture(found, tmp_path / f"picture.{suffix}")
    ElementTree.parse(tmp_path / "picture.svg")


def test_a_study_that_was_broken_off_says_so(tmp_path):
    """Cases that were not run are in the table and in no picture."""
    whole = run_study(scenario(), seeds=1)
    first, second = whole.results
    part = Study(whole.scenario, (first, type(second)(second.case, ())), complete=False)
    read, _ = page(part, tmp_path)
    assert "This study was interrupted" in read.text
    assert read.tags.count("img") == 1
    nothing = Study(whole.scenario, (type(second)(second.case, ()),), complete=False)
    assert "img" not in page(nothing, tmp_path)[0].tags
    with pytest.raises(ValueError, match=r"small.toml: nothing was run"):
        write_picture(nothing, tmp_path / "nothing.png")


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_opens_the_page_without_a_complaint(study, tmp_path):
    """Chromium reads the page from the file, offline, and has nothing to say on its console."""
    page(study, tmp_path, surveys=[recoveries(), loop()])
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--log-level=0"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", (tmp_path / "report.html").as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert shown.stdout.count("<img") == 4
    assert "CONSOLE" not in shown.stderr


# -- the pictures


def names(study, **given):
    return [picture.name for picture in choose_pictures(study, **given)]


def test_cases_without_a_swept_number_have_their_load_and_their_herd(study):
    """A panel for each case, all with the same axes, and one more for the load of the oracle."""
    load, herd = choose_pictures(study)
    assert [panel.title for panel in herd.panels] == ["retried", "once"]
    assert [panel.title for panel in load.panels] == ["retried", "once", "oracle"]
    axes = drawn(load)
    assert axes[0].get_ylim() == axes[1].get_ylim()
    assert axes[0].get_xlim() == axes[1].get_xlim() == (0.0, 20.0)


def drawn(picture):
    """The axes of a picture's panels."""
    from matplotlib.figure import Figure

    found = []
    for panel in picture.panels:
        axes = Figure().subplots()
        panel.draw(axes)
        found.append(axes)
    return found


def test_the_load_is_the_mean_over_the_seeds_per_second(study):
    """What is drawn adds up to what was counted, and the trouble is shaded from its beginning to its end."""
    (axes, *_) = drawn(choose_pictures(study)[0])
    (_, attempts, goodput) = [patch for patch in axes.patches if hasattr(patch, "get_data")]
    result = study.results[0]
    for stairs, name in ((attempts, "attempts"), (goodput, "successes")):
        values, edges, _ = stairs.get_data()
        width = edges[1] - edges[0]
        assert sum(values) * width == pytest.approx(sum(result.series(name)[:200]))
    (shade,) = [patch for patch in axes.patches if not hasattr(patch, "get_data")]
    assert (shade.get_x(), shade.get_width()) == (5.0, 2.0)


def test_the_herd_is_drawn_for_few_clients_only(tmp_path):
    """Without a raster, or with more than 5,000 clients, there are no dots."""
    assert names(run_study(scenario(), seeds=1)) == ["load"]
    many = scenario(clients={"count": 5001, "rate": 0.001}, variants=None)
    assert names(run_study(many, seeds=1, raster=True)) == ["load"]


def test_a_stack_has_the_requests_of_each_service():
    """A bar per service and case, as high as the mean over the seeds."""
    layers = {
        "front": {"workers": 1000, "calls": ["back"], "policy": {"max_attempts": 3, "budget": {"reserve": math.inf}}},
        "back": {"error_rate": 1.0},
    }
    found = run_study(scenario(services=layers, run={"horizon": 9.0, "tells_layers": False}, triggers=None), seeds=2)
    load, services = choose_pictures(found)
    assert (load.name, services.name) == ("load", "services")
    (axes,) = drawn(services)
    heights = [bar.get_height() for bar in axes.patches]
    wanted = [result.measures[f"requests.{name}"].mean for result in found.results for name in layers]
    assert heights == pytest.approx(wanted)
    assert wanted[1] > 2 * wanted[0] > 0


def test_the_herd_has_a_dot_for_each_attempt(study):
    """Time by client, of the first run."""
    for axes, result in zip(drawn(choose_pictures(study)[1]), study.results, strict=True):
        (dots,) = axes.lines
        assert list(zip(dots.get_xdata(), dots.get_ydata(), strict=True)) == list(result.samples[0].points)


def test_the_dots_of_all_panels_are_alike(study):
    """A panel with few attempts beside one with many does not look fuller than it is."""
    first, second = study.results
    sample = first.samples[0]
    many = type(sample)(**{**vars(sample), "points": sample.points * 20})
    (_, herd) = choose_pictures(Study(study.scenario, (type(first)(first.case, (many,)), second)))
    full, sparse = (axes.lines[0] for axes in drawn(herd))
    assert len(full.get_xdata()) > 5_000 > len(sparse.get_xdata())
    assert full.get_markersize() == sparse.get_markersize()


def test_a_world_that_ends_early_is_shown_until_then():
    """A herd that is over after a second is not a spike at the edge of half a minute."""
    found = run_study(scenario(clients={"count": 20, "arrivals": "once"}, triggers=None), seeds=1)
    assert span_of(found.results).until < 3.0
    assert span_of(found.results).unit == "per 100 ms"


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=400), st.sampled_from(STRETCHES))
def test_steps_lose_nothing(counts, slots):
    """Whatever the width of a step, rates times widths are the counts; the steps reach to the end, and no further."""
    span = Span(len(counts) / 10, slots)
    per = 1.0 if slots == 1 else slots / 10
    assert sum(span.rates(counts)) * per == pytest.approx(sum(counts))
    assert len(span.edges()) == span.steps + 1
    assert span.edges()[-2] < span.until <= span.edges()[-1] + 1e-9


@given(st.text(), st.integers(2, 80))
def test_names_are_one_line_of_what_can_be_printed(text, most):
    """Whatever a file calls things."""
    line = one_line(text, most)
    assert len(line) <= most
    assert line.isprintable()
    assert line == line.strip()


def test_a_swept_number_makes_lines():
    """A line per variant through the means at each value, with a key; other settings are told apart."""
    swept = scenario(sweep={"services.api.error_rate": [0.1, 0.5], "policy.max_attempts": [1, 2]}, triggers=None)
    found = run_study(swept, seeds=2)
    (picture,) = choose_pictures(found)
    assert picture.title == "Success and amplification against error rate of api"
    assert [key.label for key in picture.keys] == [
        "retried max_attempts=1",
        "retried max_attempts=2",
        "once max_attempts=1",
        "once max_attempts=2",
    ]
    success = drawn(picture)[0]
    lines = [line for line in success.lines if len(line.get_xdata()) == 2]
    assert len(lines) == 4
    wanted = [
        result.measures["success"].mean for result in found.results if result.case.settings["policy.max_attempts"] == 1
    ]
    assert list(lines[0].get_ydata()) == wanted[:2]
    assert list(lines[0].get_xdata()) == [0.1, 0.5]


def test_where_each_client_calls_once_attempts_and_time_are_drawn():
    """Calls and time against N, as AWS drew them."""
    row = {"row": {"kind": "row"}}
    swept = scenario(
        clients={"count": 2, "arrivals": "once"}, services=row, triggers=None, sweep={"clients.count": [2, 5]}
    )
    (picture,) = choose_pictures(run_study(swept, seeds=2))
    assert picture.title == "Attempts and completed against clients"
    assert [axes.get_ylabel() for axes in drawn(picture)] == ["attempts", "time of the last result (s)"]


def test_what_never_recovers_has_a_cross():
    """Where a run never recovers, the line has a gap and a cross at the edge, and the caption says so."""
    swept = scenario(
        services={"api": {"workers": 1, "service_time": 0.05}},
        policy={"max_attempts": 3, "attempt_timeout": 0.5, "budget": {"reserve": math.inf}},
        variants=None,
        sweep={"clients.count": [2, 40]},
    )
    (picture,) = choose_pictures(run_study(swept, seeds=1))
    recovery = drawn(picture)[2]
    (line, cross) = recovery.lines
    assert [math.isnan(value) for value in line.get_ydata()] == [False, True]
    assert list(cross.get_xdata()) == [40.0]
    assert "never recovers" in picture.caption


def test_a_swept_word_makes_cases():
    """What is no number has no axis: its cases stand side by side."""
    found = run_study(scenario(sweep={"services.api.order": ["fifo", "lifo"]}), seeds=1)
    (picture,) = choose_pictures(found)
    assert [panel.title for panel in picture.panels] == [
        "retried order=fifo",
        "retried order=lifo",
        "once order=fifo",
        "once order=lifo",
        "oracle order=fifo",
        "oracle order=lifo",
    ]


def test_many_cases_are_cut_and_that_is_said():
    """Twelve panels at most."""
    found = run_study(scenario(variants={f"v{place}": {} for place in range(14)}), seeds=1)
    (picture,) = choose_pictures(found)
    assert len(picture.panels) == 12
    assert "The first 12 of 15 cases are drawn." in picture.caption


def test_surveys_are_drawn_if_given(study):
    """A map with a figure in each cell, and the way up and down."""
    given = {"surveys": [recoveries(), loop()]}
    assert names(study, **given) == ["load", "herd", "recovery-map", "hysteresis"]
    _, _, cells, curve = choose_pictures(study, **given)
    assert [text.get_text() for text in drawn(cells)[0].texts] == ["0", "never", "4.5", "1 of 2"]
    assert cells.panels[0].note == "stays down in 2 of 4 cells"
    assert curve.panels[0].note == "at 10 per second: 10 up, 1 down"


# -- surveys


def test_a_recovery_map_runs_each_load_with_each_length():
    """The longer the trouble and the heavier the load, the longer it takes; beyond the capacity it never recovers."""
    done = []
    naive = scenario(
        run={"horizon": 40.0},
        services={"api": {"workers": 1, "service_time": 0.05}},
        policy={"max_attempts": 3, "attempt_timeout": 0.5, "budget": {"reserve": math.inf}},
        variants={"plain": {}, "own": {"triggers": [{"kind": "stall", "at": 3.0, "for": 1.0}]}},
        sweep={"clients.count": [10, 20]},
    )
    found = recovery_map(
        naive, loads=[30.0, 5.0], lengths=[8.0, 1.0], seeds=1, progress=lambda *told: done.append(told)
    )
    assert (found.loads, found.lengths, found.complete) == ((5.0, 30.0), (1.0, 8.0), True)
    assert done[-1] == (8, 8)
    for variant in ("plain", "own"):
        light, heavy = zip(*found.cells[variant], strict=True)
        assert all(seen.never for seen in heavy)
        assert not any(seen.never for seen in light)
    short, long = (row[0].mean for row in found.cells["own"])
    assert short < long


def test_a_hysteresis_goes_up_and_comes_down():
    """A service that wastes its time on the late stays down where it was well on the way up."""
    naive = scenario(
        services={"api": {"workers": 1, "service_time": 0.05}},
        policy={"max_attempts": 3, "attempt_timeout": 0.5, "budget": {"reserve": math.inf}},
        variants=None,
    )
    found = hysteresis(naive, loads=[6.0, 12.0, 30.0], hold=20.0, seeds=1)
    up, down = found.up[""], found.down[""]
    assert up[1].mean == pytest.approx(12.0, rel=0.25)
    assert down[1].mean < 3.0
    assert abs(up[2].mean - down[2].mean) < 6.0


@pytest.mark.parametrize(
    ("survey", "tables", "given", "says"),
    [
        (recovery_map, {"triggers": None}, {}, "small.toml: a recovery map needs a trigger"),
        (recovery_map, {"clients": {"count": 2, "arrivals": "once"}}, {}, "clients that call again and again"),
        (recovery_map, {}, {"lengths": [30.0]}, r"lengths must be at most 10, not 30"),
        (recovery_map, {}, {"loads": []}, "loads must hold 1 to 50 numbers, not 0"),
        (recovery_map, {}, {"loads": [-1.0]}, "each of loads must be a number above 0, not -1.0"),
        (recovery_map, {}, {"seeds": 0}, "seeds must be a whole number of at least 1, not 0"),
        (recovery_map, {"variants": {"a": {}, "b": {"clients": {"count": 3}}}}, {}, "as many clients in each variant"),
        (hysteresis, {"clients": {"count": 2, "arrivals": "once"}}, {}, "clients that call again and again"),
        (hysteresis, {}, {"loads": [1.0]}, "loads must hold at least two different loads"),
        (hysteresis, {}, {"hold": 0.0}, "hold must be a number at least 1"),
    ],
)
def test_a_survey_that_makes_no_sense_is_refused(survey, tables, given, says):
    """With the scenario or the value, and what was expected."""
    with pytest.raises(ValueError, match=says):
        survey(scenario(**tables), **given)


# -- files


def test_pictures_are_written_by_their_suffix(study, tmp_path):
    """PNG and SVG, in upper case too."""
    write_picture(study, tmp_path / "picture.PNG", surveys=[recoveries(), loop()])
    write_picture(study, str(tmp_path / "picture.svg"))
    assert (tmp_path / "picture.PNG").read_bytes().startswith(b"\x89PNG\r\n")
    assert ElementTree.parse(tmp_path / "picture.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize("name", ["picture.jpg", "picture", "png"])
def test_other_suffixes_are_refused(study, name):
    """With those that are known."""
    with pytest.raises(ValueError, match=rf"a picture must end in .png or .svg, not '{name}'"):
        write_picture(study, name)


WRITE = """
import sys
from abate.sim import load_scenario, run_study
from abate.sim.report import write_picture, write_report
study = run_study(load_scenario("small.toml"), seeds=2, raster=True)
write_report(study, "again.html")
write_picture(study, "again.png")
write_picture(study, "again.svg")
assert "matplotlib.pyplot" not in sys.modules
"""


def test_the_same_study_gives_the_same_bytes(tmp_path):
    """Run anew in another process, whatever matplotlib's own settings are there."""
    (tmp_path / "matplotlibrc").write_text("font.size: 30\naxes.facecolor: red\nsvg.hashsalt: other\n")
    file = tmp_path / "small.toml"
    file.write_text("[run]\nhorizon = 9.0\n[clients]\ncount = 20\n[services.api]\nservice_time = 0.02\n")
    study = run_study(load_scenario(file), seeds=2, raster=True)
    write_report(study, tmp_path / "one.html")
    write_picture(study, tmp_path / "one.png")
    write_picture(study, tmp_path / "one.svg")
    settings = {**os.environ, "MATPLOTLIBRC": str(tmp_path / "matplotlibrc"), "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", WRITE], cwd=tmp_path, env=settings, timeout=30, check=True)
    for suffix in ("html", "png", "svg"):
        assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"again.{suffix}").read_bytes(), suffix


def test_drawing_leaves_no_settings_behind(study, tmp_path):
    """The process's own pictures look as before."""
    import matplotlib as mpl

    before = mpl.rcParams.copy()
    write_picture(study, tmp_path / "picture.png")
    assert mpl.rcParams.copy() == before


def test_without_matplotlib_it_is_said_what_to_install(study, tmp_path, monkeypatch):
    """An error that names the extra; no file is left behind."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for module in ("matplotlib_render", "html_page"):
        monkeypatch.delitem(sys.modules, f"abate.sim.report.{module}")
    for write, name in ((write_report, "report.html"), (write_picture, "picture.png")):
        with pytest.raises(ImportError, match=r"reports need matplotlib: pip install 'abate\[sim\]'"):
            write(study, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_reading_about_reports_imports_no_matplotlib():
    """It is imported when something is drawn."""
    code = "import sys, abate.sim.report; print([name for name in ('matplotlib', 'numpy') if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert shown.stdout.strip() == "[]"
