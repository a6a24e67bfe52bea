"""The report: one HTML file, with the picture and the style inside. It forbids itself whatever lies outside of it."""

from __future__ import annotations

from html import escape

from abate.cli.demo.passage import Passage
from abate.cli.demo.picture import picture
from abate.cli.demo.scenario import PLACES, SERVICE, WORKERS
from abate.cli.demo.table import HEADINGS, headline, rows

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = (
    ":root{color-scheme:light dark;--paper:#fff;--ink:#1f2328;--muted:#59636e;--grid:#dde1e6}"
    "@media screen and (prefers-color-scheme:dark){:root{--paper:#15181c;--ink:#e6e8eb;--muted:#9aa4ae;--grid:#343a41}}"
    "body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,sans-serif}"
    "main{max-width:56rem;margin:0 auto;padding:1.5rem 1rem 3rem}h1{font-size:1.7rem;line-height:1.2}"
    "p{max-width:44rem}svg{display:block;width:100%;height:auto}.scroll{overflow-x:auto;margin-top:1rem}a{color:inherit}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "th,td{padding:.35rem 1rem .35rem 0;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}"
    "tbody th{text-align:left;font-weight:400}.muted{color:var(--muted)}"
)
TITLE = "At 02:13 a control plane sneezes"


def document(policy: str, body: str) -> str:
    """A whole HTML page."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>abate demo: {TITLE}</title><style>{STYLE}</style></head>\n<body><main>\n"
        f"<h1>{TITLE}</h1>\n{body}\n</main></body></html>\n"
    )


def report(naive: Passage, abated: Passage) -> str:
    """The page about both ways."""
    scenario = naive.scenario
    heads = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in HEADINGS)
    lines = "\n".join(
        f'<tr><th scope="row">{escape(label)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
        for label, *cells in rows(naive, abated)
    )
    return document(
        POLICY,
        f"""<p>{escape(headline(scenario))}. It drops every connection, so all controllers come back at once. It can
serve {WORKERS} requests at a time, {SERVICE * 1000:g} ms each; {PLACES} more may queue, and the rest get 503.</p>
<figure style="margin:0">{picture([naive, abated])}</figure>
<div class="scroll" tabindex="0"><table><thead><tr><td></td>{heads}</tr></thead>
<tbody>
{lines}
</tbody></table></div>
<p><b>Naive backoff</b> is the loop that most people write: 0.1 s, doubled after each failure, {scenario.cap:g} s at
most. Whoever failed together comes back together. <b>abate</b> is a controller and a policy in each process, with a
budget and a shelter that the processes share: while the API is down next to nothing is sent, and then what it can
take.</p>
<p class="muted">Counted by the API's own process: what arrived in each tenth of a second, and what was written. Work
is lost if a change was wanted and not written within {scenario.limit:g} s of the outage's end. Real processes, sockets
and seconds, so that no two runs are the same: <code>abate demo</code>.</p>""",
    )
