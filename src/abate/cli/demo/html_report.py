"""The report: one HTML file with the picture and the table. Its content security policy forbids loading anything."""

from __future__ import annotations

from html import escape

from abate.cli.demo.measured_run import DemoRun
from abate.cli.demo.picture import picture
from abate.cli.demo.settings import PLACES, SERVICE, WORKERS
from abate.cli.demo.table import HEADINGS, headline, rows

STYLE = (
    "body{max-width:56rem;margin:0 auto;padding:1rem;color-scheme:light dark;background:Canvas;color:CanvasText;"
    "font:16px/1.5 system-ui,sans-serif}table{border-collapse:collapse}"
    "th,td{padding:.3rem 1rem .3rem 0;text-align:right}tbody th{text-align:left;font-weight:400}"
)


def report(naive: DemoRun, abated: DemoRun) -> str:
    """Return the page about both runs."""
    settings = naive.settings
    heads = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in HEADINGS)
    lines = "\n".join(
        f'<tr><th scope="row">{escape(label)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
        for label, *cells in rows(naive, abated)
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>abate demo</title>
<style>{STYLE}</style></head>
<body><h1>{escape(headline(settings))}</h1>
<p>At second 0 the API drops every connection, so that all controllers return at once. It serves {WORKERS} requests at a
time, {SERVICE * 1000:g} ms each; {PLACES} more may queue, and the rest get 503.</p>
{picture([naive, abated])}
<table><thead><tr><td></td>{heads}</tr></thead>
<tbody>
{lines}
</tbody></table>
<p><b>Naive backoff</b> waits 0.1 s, doubled after each failure, {settings.cap:g} s at most, without jitter: controllers
that failed together return together. <b>abate</b> is a controller and a policy in each process, with a budget and a
shelter that the processes share.</p>
<p>Figures are counted by the API process. A change is lost if it is not written within {settings.limit:g} s of the end
of the outage. Processes, sockets and seconds are real, so that no two runs are the same: <code>abate demo</code>.</p>
</body></html>
"""
