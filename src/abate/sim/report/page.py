"""The page: a study in one HTML file, pictures and style inside.

Every text passes `escape` on its way in. The page forbids itself scripts and whatever lies outside of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from abate.sim.clients import Clients
from abate.sim.confidence import confidence
from abate.sim.outlook import outlook
from abate.sim.report.canvas import inline_svg
from abate.sim.report.front import described, recommended
from abate.sim.report.palette import stylesheet
from abate.sim.report.picture import Key, Picture
from abate.sim.report.words import counted, heading, named
from abate.sim.study import Estimate, Study
from abate.sim.tune import Trial, Tuning
from abate.sim.world import World

STYLE = Path(__file__).with_name("page.css")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
TELLING = (
    "calls",
    "attempts",
    "amplification",
    "success",
    "goodput",
    "recovery",
    "completed",
    "peak_1s",
    "peak_after",
    "denials",
    "wasted",
    "p50",
    "p99",
)
"""The measures of the first table; all others are one click away."""
IF_ANY = ("denials", "wasted")
"""Those that say nothing as long as they are 0."""
CODE = re.compile("`([^`]+)`")
"""A name in a text, as scenarios write it."""
GLYPHS = {
    "line": "━",
    "dashed": "╍",
    "dotted": "┅",
    "area": "■",
    "dot": "•",
    "o": "●",
    "s": "■",
    "^": "▲",
    "D": "◆",
    "v": "▼",
    "P": "✚",
    "X": "✖",
    "*": "★",
}
"""How the signs of a key are written."""


def page_of(study: Study, pictures: Sequence[Picture], tuning: Tuning | None = None) -> str:
    """The whole page."""
    name = escape(study.scenario.name)
    sections = [
        _head(study),
        _results(study),
        _assertions(study),
        _outlooks(study),
        *_figures(pictures),
        "" if tuning is None else _tuned(tuning),
        _notes(study),
        FOOT,
    ]
    style = stylesheet() + STYLE.read_text(encoding="utf-8")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{name} – abate sim</title>\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n{''.join(sections)}</main>\n</body>\n</html>\n"
    )


FOOT = (
    "<footer><p>Means over seeds; ± is the interval in which the true mean lies (95 %). Never: in these runs it did not"
    " happen before the horizon; the mean is that of the others.</p></footer>\n"
)


def _head(study: Study) -> str:
    paragraphs = [" ".join(part.split()) for part in study.scenario.about.split("\n\n")]
    about = "".join("<p>" + CODE.sub(r"<code>\1</code>", escape(part)) + "</p>\n" for part in paragraphs if part)
    runs = [len(result.samples) for result in study.results]
    seeds = f"{min(runs, default=0)} to {max(runs, default=0)}" if len(set(runs)) > 1 else f"{max(runs, default=0)}"
    engines = sorted({sample.engine for result in study.results for sample in result.samples})
    facts = f"{counted(len(runs), 'case')}, {counted(sum(runs), 'run')} ({seeds} for each case)"
    facts += f"; engine: {', '.join(engines)}." if engines else "."
    broken_off = "" if study.complete else '<p class="broken">This study was broken off: not all runs are in it.</p>\n'
    title = f"<h1>{escape(study.scenario.name)}</h1>\n"
    return f'<header>\n{title}{about}<p class="facts">{escape(facts)}</p>\n{broken_off}</header>\n'


# -- tables


def _results(study: Study) -> str:
    rows = [(named(result.case, study.scenario.name), result.measures) for result in study.results]
    every = list(dict.fromkeys(name for _, seen in rows for name in seen))
    telling = [name for name in TELLING if any(_tells(name, seen[name]) for _, seen in rows if name in seen)]
    if not any(_ends(result.case.world) for result in study.results):
        telling = [name for name in telling if name != "completed"]
    table, more = _measures("Results", telling, rows), _measures("All measures", every, rows)
    details = f"<details>\n<summary>All measures</summary>\n{more}</details>\n"
    return f"<section>\n<h2>Results</h2>\n{table}{details}</section>\n"


def _tells(name: str, seen: Estimate) -> bool:
    """Is there anything to read off it?"""
    return bool(seen.never) or not (math.isnan(seen.mean) or (name in IF_ANY and not seen.mean))


def _ends(world: World) -> bool:
    """Is it over some time, and not just cut off by the horizon?"""
    return isinstance(world.clients, Clients) and world.clients.arrivals == "once"


def _measures(title: str, names: Sequence[str], rows: Sequence[tuple[str, Mapping[str, Estimate]]]) -> str:
    cells = [[case, *(str(seen[name]) if name in seen else "-" for name in names)] for case, seen in rows]
    return _table(title, ["case", *map(heading, names)], cells)


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls in itself; the first column names the rows."""
    first = '<th scope="col" class="name">'
    head = first + escape(heads[0]) + "</th>" + "".join(f'<th scope="col">{escape(name)}</th>' for name in heads[1:])
    body = "".join(
        f'<tr><th scope="row" class="name">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>\n"
        for row in rows
    )
    return (
        f'<div class="scroll" role="region" aria-label="{escape(title)}" tabindex="0">\n<table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n</div>\n"
    )


# -- what is said of the cases


def _assertions(study: Study) -> str:
    lines = []
    for result in study.results:
        for verdict in result.verdicts():
            word, kind = ("holds", "holds") if verdict.holds else ("does not hold", "broken")
            lines.append(
                f'<tr><th scope="row" class="name">{escape(named(result.case, study.scenario.name))}</th>'
                f'<td class="name">{escape(f"{verdict.key} = {verdict.bound:g}")}</td>'
                f"<td>{escape(str(verdict.seen))}</td>"
                f'<td class="{kind}">{"✓" if verdict.holds else "✗"} {word}</td></tr>\n'
            )
    if not lines:
        return ""
    return (
        "<section>\n<h2>Assertions</h2>\n"
        '<div class="scroll" role="region" aria-label="Assertions" tabindex="0">\n<table>\n<thead><tr>'
        '<th scope="col" class="name">case</th><th scope="col" class="name">asserted</th><th scope="col">seen</th>'
        f'<th scope="col">verdict</th></tr></thead>\n<tbody>\n{"".join(lines)}</tbody>\n</table>\n</div>\n</section>\n'
    )


def _outlooks(study: Study) -> str:
    said: dict[str, list[str]] = {}
    for result in study.results:
        for sight in outlook(result.case.world):
            said.setdefault(str(sight), []).append(named(result.case, study.scenario.name))
    return _listed("When a service stays down", said, len(study.results))


def _notes(study: Study) -> str:
    said: dict[str, list[str]] = {}
    for result in study.results:
        for note in result.notes:
            said.setdefault(note, []).append(named(result.case, study.scenario.name))
    return _listed("Notes", said, len(study.results))


def _listed(title: str, said: dict[str, list[str]], cases: int) -> str:
    """Sentences, each once, with the cases that it is said of unless that is all."""
    if not said:
        return ""
    items = ""
    for line, of in said.items():
        whose = "" if len(of) == cases else f' <span class="note">({escape(", ".join(of))})</span>'
        items += f"<li>{escape(line)}{whose}</li>\n"
    return f"<section>\n<h2>{title}</h2>\n<ul>\n{items}</ul>\n</section>\n"


def _tuned(tuning: Tuning) -> str:
    rows = [
        [described(trial.candidate), str(trial.recovery), str(trial.amplification), str(trial.success), _limit(trial)]
        for trial in tuning.front
    ]
    table = _table("The front", ["policy", "recovery (s)", "amplification", "success", "limit"], rows)
    best = recommended(tuning)
    words = "" if best is None else f"best: {described(best.candidate)}; "
    words += confidence(tuning)
    said = f"<p>{escape(words[0].upper() + words[1:])}.</p>\n"
    seen = f"{counted(tuning.runs, 'run')} in all, {counted(tuning.seeds, 'seed')} for each of these."
    runs = f'<p class="facts">{seen}</p>\n'
    return f"<section>\n<h2>The policies of the front</h2>\n{said}{table}{runs}</section>\n"


def _limit(trial: Trial) -> str:
    return "kept" if trial.fits else "exceeded"


# -- pictures


def _figures(pictures: Sequence[Picture]) -> Iterable[str]:
    number = 0
    for picture in pictures:
        panels = []
        for panel in picture.panels:
            number += 1
            name = f'<p><b>{escape(panel.title)}</b> <span class="note">{escape(panel.note)}</span></p>\n'
            above = name if panel.title else ""
            panels.append(f'<div class="panel">\n{above}{inline_svg(panel, number)}\n</div>\n')
        keys = f'<ul class="keys">{"".join(map(_key, picture.keys))}</ul>\n' if picture.keys else ""
        yield (
            f'<section id="{picture.name}">\n<h2>{escape(picture.title)}</h2>\n<figure>\n'
            f"<figcaption>{escape(picture.caption)}</figcaption>\n{keys}"
            f'<div class="panels">\n{"".join(panels)}</div>\n</figure>\n</section>\n'
        )


def _key(key: Key) -> str:
    glyph = f'<span aria-hidden="true" style="color:{key.colour.variable}">{GLYPHS[key.sign]}</span>'
    return f"<li>{glyph} {escape(key.label)}</li>"
