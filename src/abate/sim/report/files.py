"""Writes reports to files. A file is written at the end, so that an error leaves the old file unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from abate.sim.report.choose_pictures import Survey, choose_pictures
from abate.sim.study import Study

SUFFIXES = (".png", ".svg")
MISSING = "reports need matplotlib: pip install 'abate[sim]'"


def write_report(study: Study, path: str | Path, surveys: Sequence[Survey] = ()) -> None:
    """Write a study as one HTML page that opens offline, with its surveys.

    >>> import tempfile
    >>> from abate.sim import load_scenario, run_study
    >>> study = run_study(load_scenario("herd").changed("clients.count=20"), seeds=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(study, Path(folder, "herd.html"))
    ...     Path(folder, "herd.html").read_text(encoding="utf-8")[:15]
    '<!DOCTYPE html>'
    """
    try:
        from abate.sim.report.html_page import page_of
    except ImportError as missing:
        raise ImportError(MISSING) from missing
    text = page_of(study, choose_pictures(study, surveys))
    Path(path).write_text(text, encoding="utf-8", newline="\n")


def write_picture(study: Study, path: str | Path, surveys: Sequence[Survey] = ()) -> None:
    """Write the pictures of a study as one PNG or SVG, by the suffix of the path.

    >>> from abate.sim import load_scenario, run_study
    >>> write_picture(run_study(load_scenario("herd").changed("clients.count=20"), seeds=1), "herd.jpg")
    Traceback (most recent call last):
    ValueError: a picture must end in .png or .svg, not 'herd.jpg'
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"a picture must end in {' or '.join(SUFFIXES)}, not {str(path)!r}")
    try:
        from abate.sim.report.matplotlib_render import render_figure
    except ImportError as missing:
        raise ImportError(MISSING) from missing
    pictures = choose_pictures(study, surveys)
    if not pictures:
        raise ValueError(f"{study.scenario.place}: nothing was run: there is nothing to draw")
    Path(path).write_bytes(render_figure(pictures, suffix[1:]))
