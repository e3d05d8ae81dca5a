"""HTML of the report: its style and its building blocks. A page loads nothing, because pictures are data URIs."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from html import escape

from commands.report.runs import Missing
from commands.run_folder import git_revision, short_revision
from drlhp.errors import USER_ERRORS, told

GENERATOR = "run.py report"
STYLE = """
:root { color-scheme: light dark; --text: #1c1e22; --dim: #5b616b; --page: #ffffff; --card: #f4f5f7; --line: #d9dce1; }
body { margin: 0 auto; max-width: 1160px; padding: 16px; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; line-height: 1.3; margin: .3em 0; }
h2 { font-size: 1.2rem; margin: 2em 0 .4em; border-top: 1px solid var(--line); padding-top: .8em; }
h3 { font-size: 1.05rem; margin: 1.6em 0 .3em; } h4 { margin: 1em 0 .2em; }
p { margin: .4em 0; max-width: 90ch; } .dim, figcaption { color: var(--dim); font-size: .875rem; }
.missing { background: var(--card); border-radius: 8px; padding: .6em .9em; }
.verdict { display: inline-block; border-radius: 99px; padding: .1em .8em; font-weight: 600; color: #fff;
  background: #5b616b; } .verdict.good { background: #00734f; } .verdict.some { background: #8a5a00; }
.verdict.bad { background: #b03a00; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 10px; margin: 1em 0; }
.tile { background: var(--card); border-radius: 8px; padding: .5em .8em; }
.tile b { display: block; font-size: 1.25rem; } .tile span { color: var(--dim); font-size: .85rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 14px; }
figure { margin: 0; } img { max-width: 100%; height: auto; }
.chart { background: #fff; border-radius: 8px; display: block; }
.wide { overflow-x: auto; } .wide .chart { min-width: 700px; }
.frames { display: grid; grid-template-columns: repeat(auto-fit, minmax(105px, 1fr)); gap: 8px; margin: .5em 0; }
.frames img { width: 100%; image-rendering: pixelated; border-radius: 4px; display: block; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: .875rem; }
th, td { text-align: left; padding: .25em .9em .25em 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; white-space: nowrap; } code { font-size: .85em; overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8eaed; --dim: #a2a8b3; --page: #171717; --card: #24262b; --line: #3a3d44; }
  .chart { filter: invert(.91) hue-rotate(180deg); }
}
"""


@dataclass
class Report:
    """A page as it grows, and the pictures that are also kept as files."""

    parts: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)

    def chart(self, name: str, png: bytes, alt: str) -> str:
        """Returns a figure for the page, and keeps it as `name`.png too."""
        self.files[f"{name}.png"] = png
        return f'<img class="chart" src="{uri("png", png)}" alt="{escape(alt)}">'

    def section(self, name: str, title: str, level: int, make: Callable[..., str], *arguments: object) -> None:
        """Adds a part of the page, `make(*arguments)`, or the reason if it cannot be made."""
        try:
            body = make(*arguments)
        except (Missing, *USER_ERRORS) as error:
            body = missing(told(error))
        self.parts.append(f'<section id="{name}"><h{level}>{escape(title)}</h{level}>\n{body}</section>')

    def page(self, title: str) -> str:
        """Returns the whole page, with the names of the figures' files in its head."""
        made = f"Made {datetime.now():%Y-%m-%d %H:%M} by {GENERATOR}, commit {short_revision(git_revision())}."
        return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="{GENERATOR}">
<meta name="files" content="{escape(" ".join(self.files))}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
{chr(10).join(self.parts)}
<footer>{note(made)}</footer>
</body>
</html>
"""


def missing(sentence: str) -> str:
    """Returns the reason why something is missing, as a paragraph."""
    return f'<p class="missing">{escape(sentence)}</p>'


def note(sentences: str) -> str:
    """Returns small print."""
    return f'<p class="dim">{escape(sentences)}</p>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = (), code: int = -1) -> str:
    """Returns a table of plain text; columns in `numbers` are aligned to the right, and column `code` is code."""

    def cell(tag: str, i: int, text: str) -> str:
        inner = f"<code>{escape(text)}</code>" if i == code and tag == "td" else escape(text)
        return f'<{tag} class="n">{inner}</{tag}>' if i in numbers else f"<{tag}>{inner}</{tag}>"

    lines = [f"<tr>{''.join(cell('th', i, text) for i, text in enumerate(head))}</tr>"] if any(head) else []
    lines += [f"<tr>{''.join(cell('td', i, text) for i, text in enumerate(row))}</tr>" for row in rows]
    return f'<div class="table"><table>{"".join(lines)}</table></div>'


def pair(*items: str) -> str:
    """Returns things side by side, or one below the other on a narrow screen."""
    return f'<div class="pair">{"".join(f"<div>{item}</div>" for item in items)}</div>'


def frame(kind: str, data: bytes, *lines: str) -> str:
    """Returns a picture with the lines of its caption; `kind` is png or gif."""
    caption = "<br>".join(map(escape, lines))
    picture = f'<img src="{uri(kind, data)}" alt="{escape(", ".join(lines))}">'
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"


def uri(kind: str, data: bytes) -> str:
    """Returns a picture as part of the page."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def plain(value: float) -> str:
    """Returns a count as text; empty for NaN."""
    return "" if math.isnan(value) else f"{value:,.0f}"


def slug(text: str) -> str:
    """Returns a text as part of a file name or an id."""
    return "".join(c if c.isalnum() else "-" for c in text).strip("-").lower()
