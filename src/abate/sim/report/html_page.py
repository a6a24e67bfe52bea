"""Renders a study as one HTML page, with pictures and style inside.

All text is escaped. The page's content security policy forbids scripts and loading anything.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from abate.sim.report.labels import case_label, one_line, pluralize
from abate.sim.report.matplotlib_render import render_figure
from abate.sim.report.picture import Picture
from abate.sim.study import Estimate, Study
from abate.sim.study_tables import default_measures, heading, note_lines, vulnerable_lines

STYLE = Path(__file__).with_name("page.css")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
MAX_LINE_LENGTH = 1000
"""Letters of a line in a list; a longer one is cut."""
CODE = re.compile("`([^`]+)`")
"""Code in a description, in backticks."""


def page_of(study: Study, pictures: Sequence[Picture]) -> str:
    """Return the whole page."""
    name = escape(study.scenario.name)
    sections = [
        _head(study),
        _results(study),
        _assertions(study),
        _list("When a service stays down", vulnerable_lines(study.results)),
        *_figures(pictures),
        _list("Notes", note_lines(study.results)),
        FOOT,
    ]
    style = STYLE.read_text(encoding="utf-8")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{name} – abate sim</title>\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n{''.join(sections)}</main>\n</body>\n</html>\n"
    )


FOOT = (
    "<footer><p>Means over seeds; ± is the 95 % confidence interval. Never: in these runs it did not happen before the"
    " horizon; the mean is over the others.</p></footer>\n"
)


def _head(study: Study) -> str:
    paragraphs = [" ".join(part.split()) for part in study.scenario.about.split("\n\n")]
    about = "".join("<p>" + CODE.sub(r"<code>\1</code>", escape(part)) + "</p>\n" for part in paragraphs if part)
    runs = [len(result.samples) for result in study.results]
    seeds = f"{min(runs, default=0)} to {max(runs, default=0)}" if len(set(runs)) > 1 else f"{max(runs, default=0)}"
    engines = sorted({sample.engine for result in study.results for sample in result.samples})
    facts = f"{pluralize(len(runs), 'case')}, {pluralize(sum(runs), 'run')} ({seeds} for each case)"
    facts += f"; engine: {', '.join(engines)}." if engines else "."
    broken_off = "" if study.complete else '<p class="broken">This study was interrupted: it is not complete.</p>\n'
    title = f"<h1>{escape(study.scenario.name)}</h1>\n"
    return f'<header>\n{title}{about}<p class="facts">{escape(facts)}</p>\n{broken_off}</header>\n'


# -- tables


def _results(study: Study) -> str:
    rows = [
        (case_label(result.case, study.scenario.name), result.measures) for result in (*study.results, *study.oracles)
    ]
    every = list(dict.fromkeys(name for _, seen in rows for name in seen))
    table = _measures("Results", default_measures(study.results), rows)
    more = _measures("All measures", every, rows)
    details = f"<details>\n<summary>All measures</summary>\n{more}</details>\n"
    return f"<section>\n<h2>Results</h2>\n{table}{details}</section>\n"


def _measures(title: str, names: Sequence[str], rows: Sequence[tuple[str, Mapping[str, Estimate]]]) -> str:
    cells = [[case, *(str(seen[name]) if name in seen else "-" for name in names)] for case, seen in rows]
    return _table(title, ["case", *map(heading, names)], cells)


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table that scrolls; the first column labels the rows."""
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


# -- assertions, ranges and notes


def _assertions(study: Study) -> str:
    lines = []
    for result in study.results:
        for found in result.assertion_results():
            word, kind = ("holds", "holds") if found.holds else ("does not hold", "broken")
            lines.append(
                f'<tr><th scope="row" class="name">{escape(case_label(result.case, study.scenario.name))}</th>'
                f'<td class="name">{escape(f"{found.key} = {found.bound:g}")}</td>'
                f"<td>{escape(str(found.seen))}</td>"
                f'<td class="{kind}">{"✓" if found.holds else "✗"} {word}</td></tr>\n'
            )
    if not lines:
        return ""
    return (
        "<section>\n<h2>Assertions</h2>\n"
        '<div class="scroll" role="region" aria-label="Assertions" tabindex="0">\n<table>\n<thead><tr>'
        '<th scope="col" class="name">case</th><th scope="col" class="name">asserted</th><th scope="col">seen</th>'
        f'<th scope="col">result</th></tr></thead>\n<tbody>\n{"".join(lines)}</tbody>\n</table>\n</div>\n</section>\n'
    )


def _list(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{escape(one_line(line, MAX_LINE_LENGTH))}</li>\n" for line in lines)
    return f"<section>\n<h2>{title}</h2>\n<ul>\n{items}</ul>\n</section>\n"


# -- pictures


def _figures(pictures: Sequence[Picture]) -> Iterator[str]:
    for picture in pictures:
        image = b64encode(render_figure([picture], "svg")).decode()
        alt = " ".join(panel.alt for panel in picture.panels)
        yield (
            f'<section id="{picture.name}">\n<h2>{escape(picture.title)}</h2>\n<figure>\n'
            f"<figcaption>{escape(picture.caption)}</figcaption>\n"
            f'<img src="data:image/svg+xml;base64,{image}" alt="{escape(alt)}">\n</figure>\n</section>\n'
        )
