"""A study's note as plain text, and with its figures as an HTML page."""

from collections.abc import Callable
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path
import re
from typing import Any

import optuna

from optuna_treecv.reporting.evaluations import Evaluations
from optuna_treecv.reporting.note import cells_of
from optuna_treecv.reporting.note import note_of

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem; }
h1, h2, h3 { line-height: 1.25; margin: 2rem 0 .75rem; overflow-wrap: anywhere; }
h2 { border-bottom: 1px solid #ddd; padding-bottom: .3rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0;
        font-variant-numeric: tabular-nums; }
th, td { border: 1px solid #ccc; padding: .35rem .75rem; text-align: left; vertical-align: top; }
th { background: #f3f4f6; }
code, pre { font: .875em/1.5 ui-monospace, monospace; background: #f3f4f6; border-radius: 4px; }
code { padding: .1em .3em; }
pre { padding: .75rem 1rem; overflow-x: auto; }
"""

# A code span: as many backticks at its end as at its beginning.
_CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")


def explained(study: optuna.Study, store: Any) -> str:
    """Return what a study has found, as text: its note with columns one below the other."""
    lines: list[str] = []
    note = _plain_lines(note_of(Evaluations(study, store)))
    for is_table, block in groupby(note, key=lambda line: line.startswith("|")):
        block_lines = list(block)
        lines += _align_table(block_lines) if is_table else block_lines
    return re.sub("\n{3,}", "\n\n", "\n".join(lines))


def _align_table(table: list[str]) -> list[str]:
    """Return the lines of a Markdown table with columns of equal width; its head may be empty."""
    rows = [cells_of(line) for line in table]
    rows[1] = ["-" * max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = align(rows)
    return lines if lines[0] else ["", "", *lines[2:]]


def align(
    rows: Sequence[Sequence[str]], justify: Callable[[str, int], str] = str.ljust
) -> list[str]:
    """Return the rows of a table as lines; ``justify`` acts on all columns but the first."""
    first, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(first), *map(justify, row[1:], widths)]).rstrip() for row in rows
    ]


def _plain_lines(note: str) -> list[str]:
    """Return the lines of a note without marks of bold text, but for those in code."""
    lines, is_code = [], False
    for line in note.splitlines():
        is_code ^= line.startswith("```")
        parts: list[str] = re.split(r"(`+[^`].*?`+)", line)
        parts[::2] = [re.sub(r"\*\*([^*]+)\*\*", r"\1", one) for one in parts[::2]]
        lines.append(line if is_code else "".join(parts))
    return lines


def write_html(study: optuna.Study, store: Any, path: str) -> list[Path]:
    """Write a study's note and figures as an HTML page, and return the paths of its files.

    The figures need ``plotly.min.js``, which is written into the same folder unless it is there.
    """
    from optuna_treecv.reporting.figures import figures_of  # needs plotly, and takes a second

    evaluations = Evaluations(study, store)
    figures = [
        figure.to_html(full_html=False, include_plotlyjs="directory" if number == 0 else False)
        for number, figure in enumerate(figures_of(study, store, evaluations).values())
    ]
    title = escape(study.study_name)
    lines = [
        "<!DOCTYPE html>",
        f"<html lang='en'><head><meta charset='utf-8'><title>{title}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        *map(_render_block, note_of(evaluations).split("\n\n")),
        "<h2>Figures</h2>",
        "<p>The figures need <code>plotly.min.js</code> in the folder of this page.</p>",
        *figures,
        "</body></html>\n",
    ]
    from plotly.offline import get_plotlyjs  # after figures, whose ImportError names the extra

    page = Path(path)
    page.write_text("\n".join(lines), encoding="utf-8")
    library, content = page.with_name("plotly.min.js"), get_plotlyjs().encode()
    if not library.exists() or library.read_bytes() != content:
        library.write_bytes(content)
    return [page, library]


def _render_block(block: str) -> str:
    """Return the HTML of a heading, a table, a list, a block of code or a paragraph."""
    lines = block.splitlines()
    if block.startswith("#"):
        marks, text = block.split(" ", 1)
        return f"<h{len(marks)}>{_render_text(text)}</h{len(marks)}>"
    if block.startswith("|"):
        head, _, *rows = [[_render_text(cell) for cell in cells_of(line)] for line in lines]
        head_row = [_render_row("th", head)] if any(head) else []
        html_rows = [_render_row("td", row) for row in rows]
        return "\n".join(["<table>", *head_row, *html_rows, "</table>"])
    if block.startswith("* "):
        items = (f"<li>{_render_text(line.removeprefix('* '))}</li>" for line in lines)
        return "\n".join(["<ul>", *items, "</ul>"])
    if block.startswith("```"):
        code = "\n".join(lines[1:-1])
        return f"<pre>{escape(code)}</pre>"
    return f"<p>{_render_text(block)}</p>"


def _render_row(tag: str, cells: list[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>"


def _render_text(text: str) -> str:
    """Return the HTML of a line with code spans and bold text."""
    html, end = [], 0
    for code in _CODE.finditer(text):
        html += [_render_bold(text[end : code.start()]), f"<code>{escape(code[2].strip())}</code>"]
        end = code.end()
    return "".join([*html, _render_bold(text[end:])])


def _render_bold(text: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escape(text))
