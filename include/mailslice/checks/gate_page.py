"""The pages of Data Docs that people open: one a gate, and the index. Plain HTML, no script."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mailslice.codec.shown import several

PASS, FAIL = "PASS", "FAIL"
_STYLE = """<style>
:root{color-scheme:light dark;--ink:#1b2530;--faint:#5d6b79;--line:#dde3ea;--paper:#fff;
--link:#0b6e99;--good:#14713f;--good-soft:#e2f4ea;--bad:#a3122a;--bad-soft:#fbe6e9}
@media(prefers-color-scheme:dark){:root{--ink:#e6ebf0;--faint:#98a6b4;--line:#2c3742;
--paper:#11161c;
--link:#58b7dd;--good:#6fd39a;--good-soft:#153324;--bad:#ff8a9b;--bad-soft:#3d1a20}}
body{font:16px/1.5 system-ui,sans-serif;margin:1.5rem auto;max-width:64rem;padding:0 1rem;
background:var(--paper);color:var(--ink)}
a{color:var(--link)}nav{margin-bottom:1rem}h1{font-size:1.5rem;margin:.2rem 0 .6rem}
h2{font-size:1.1rem;margin:1.6rem 0 .4rem}.faint{color:var(--faint)}
.verdict{display:inline-block;border-radius:99px;padding:.1rem .9rem;margin-right:.6rem;
font-weight:700}
.pass{background:var(--good-soft);color:var(--good)}
.fail{background:var(--bad-soft);color:var(--bad)}
.says{font-size:1.1rem}ul{padding-left:1.2rem}li{margin:.3rem 0}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}
td,th{border-bottom:1px solid var(--line);padding:.4rem .6rem;text-align:left;vertical-align:top}
th{color:var(--faint);font-size:.85rem}code{overflow-wrap:anywhere}
</style>"""
_MEANINGS = {
    ("check", True): "The plan may be applied.",
    ("check", False): "The plan was refused, and nothing was changed.",
    ("verify", True): "What the run did is as it should be.",
    ("verify", False): "What is in the stores now is not as it should be: a person must look.",
}
"""What the end of a gate means for the run."""


def gate_page(entry: Mapping[str, Any], findings: Sequence[Mapping[str, object]]) -> str:
    """The verdict first, then what does not hold, then everything that was looked at."""
    gate, duty, queue = (_escape(entry[name]) for name in ("gate", "duty", "queue"))
    broken = [finding for finding in findings if not finding["success"]]
    about = (
        f"<p class=says>{_sentence(findings, broken)} "
        f"{_escape(_MEANINGS.get((entry['gate'], bool(entry['success'])), ''))}</p>"
        f"<p class=faint>Run <code>{_escape(entry['run'])}</code>, {_escape(entry['at'])}.</p>"
    )
    failures = f"<h2>What does not hold</h2><ul>{''.join(map(_failure, broken))}</ul>"
    return _page(
        f"{duty}: {gate} of queue {queue}",
        '<nav><a href="../index.html">All checks</a></nav>'
        f"<h1>{_badge(entry['success'])}{duty}: {gate} of queue {queue}</h1>"
        f"{about}{failures if broken else ''}{_table(findings)}{_own_pages(entry['pages'])}",
    )


def index_page(entries: Sequence[Mapping[str, Any]]) -> str:
    """The newest gates of all runs."""
    failed = sum(not entry["success"] for entry in entries)
    of_all = "All of them passed." if not failed else f"{failed:,} of them failed."
    newest = f"The newest {several(len(entries), 'check')} of all runs. {of_all}"
    says = newest if entries else "No run has been checked yet."
    head = "<tr><th></th><th>When</th><th>Duty</th><th>Queue</th><th>Check</th><th>Run</th></tr>"
    rows = "".join(map(_index_row, entries))
    table = f"<div class=wide><table>{head}{rows}</table></div>" if entries else ""
    return _page("Checks of all runs", f"<h1>Checks of all runs</h1><p>{says}</p>{table}")


def _page(title: str, body: str) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title>{_STYLE}</head><body>{body}</body></html>"
    )


def _sentence(
    findings: Sequence[Mapping[str, object]], broken: Sequence[Mapping[str, object]]
) -> str:
    if not findings:
        return "There was nothing to look at."
    if broken:
        return f"{len(broken):,} of {several(len(findings), 'expectation')} did not hold."
    return f"All {len(findings):,} expectations held." if len(findings) > 1 else "It held."


def _failure(finding: Mapping[str, object]) -> str:
    return (
        f"<li><b>{_escape(finding['expectation'])}</b> Not true for {finding['failedRows']} of "
        f"{finding['rows']} rows: <code>{_escape(finding['column'])}</code> was "
        f"<code>{_escape(finding['observed'])}</code>.</li>"
    )


def _table(findings: Sequence[Mapping[str, object]]) -> str:
    if not findings:
        return ""
    head = "<tr><th></th><th>What must hold</th><th>Seen</th><th>Rows that break it</th></tr>"
    rows = "".join(
        f"<tr><td>{_badge(finding['success'])}</td><td>{_escape(finding['expectation'])}</td>"
        f"<td><code>{_escape(finding['column'])} = {_escape(finding['observed'])}</code></td>"
        f"<td>{finding['failedRows']} of {finding['rows']}</td></tr>"
        for finding in findings
    )
    title = "<h2>Everything that was looked at</h2>"
    return f"{title}<div class=wide><table>{head}{rows}</table></div>"


def _own_pages(pages: Sequence[str]) -> str:
    if not pages:
        return ""
    links = (f'<a href="../{_escape(page)}">{_escape(Path(page).stem)}</a>' for page in pages)
    return f"<p class=faint>Great Expectations' own pages: {' · '.join(links)}</p>"


def _index_row(entry: Mapping[str, Any]) -> str:
    gate = f'<a href="{_escape(entry["page"])}">{_escape(entry["gate"])}</a>'
    cells = "".join(f"<td>{_escape(entry[name])}</td>" for name in ("at", "duty", "queue"))
    return (
        f"<tr><td>{_badge(entry['success'])}</td>{cells}<td>{gate}</td>"
        f"<td>{_escape(entry['run'])}</td></tr>"
    )


def _badge(success: object) -> str:
    kind, word = ("pass", PASS) if success else ("fail", FAIL)
    return f'<span class="verdict {kind}">{word}</span>'


def _escape(value: object) -> str:
    return html.escape(str(value), quote=True)
