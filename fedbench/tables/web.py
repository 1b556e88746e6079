"""Tables for web pages and notebooks, as plain HTML that takes its look from the page."""

from __future__ import annotations

from html import escape

from fedbench.tables.table import Table


def paragraph(text: str) -> str:
    """Write a text as a paragraph.

    >>> paragraph("2 < 3")
    '<p>2 &lt; 3</p>'
    """
    return f"<p>{escape(text)}</p>"


def as_html(table: Table) -> str:
    """Write a ``table``: names of groups over all columns, marked lines in bold."""
    heads = [escape(" ".join(column.heading.split())) for column in table.columns]
    lines = ["<table>", f"<thead><tr>{_cells('th', heads, table)}</tr></thead>", "<tbody>"]
    for line in table.lines:
        texts = [escape(text.strip()) for text in line.texts]
        if line.title:
            span = f'colspan="{len(heads)}" style="text-align: left"'
            lines.append(f"<tr><th {span}>{texts[0]}</th></tr>")
            continue
        texts = [f"<b>{text}</b>" for text in texts] if line.marked else texts
        lines.append(f"<tr>{_cells('td', texts, table)}</tr>")
    return "\n".join([*lines, "</tbody>", "</table>"])


def _cells(tag: str, texts: list[str], table: Table) -> str:
    return "".join(
        f'<{tag} style="text-align: {"left" if column.align == "left" else "right"}">{text}</{tag}>'
        for column, text in zip(table.columns, texts, strict=True)
    )
