"""Tables for LaTeX, with the rules of the package booktabs."""

from __future__ import annotations

from fedbench.tables.table import Table

# Characters that LaTeX reads as commands, and signs that its usual fonts lack.
_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
    **{"±": r"$\pm$", "ε": r"$\varepsilon$", "δ": r"$\delta$", "◀": r"$\triangleleft$"},
    **{"…": r"\dots{}", "—": "---", "'": "'{}", '"': r"\textquotedbl{}"},
}
_TRANSLATED = str.maketrans(_LATEX)


def escaped(text: str) -> str:
    r"""Return a text as LaTeX prints it.

    >>> escaped("fsl:k=0.5 & 93.1 ± 0.2 %")
    'fsl:k=0.5 \\& 93.1 $\\pm$ 0.2 \\%'
    """
    return text.strip().translate(_TRANSLATED)


def as_latex(table: Table) -> str:
    r"""Write a ``tabular``: names of groups over all columns, marked lines in bold."""
    signs = "".join("l" if column.align == "left" else "r" for column in table.columns)
    lines = [rf"\begin{{tabular}}{{@{{}}{signs}@{{}}}}", r"\toprule"]
    heads = [" ".join(column.heading.split()) for column in table.columns]
    if table.grouped:
        heads[0] = table.columns[0].heading.split("\n")[-1].strip()
    lines += [" & ".join(map(escaped, heads)) + r" \\", r"\midrule"]
    for number, line in enumerate(table.lines):
        if line.title:
            lines += [r"\addlinespace"] * (number > 0)
            name = escaped(line.texts[0])
            lines.append(rf"\multicolumn{{{len(heads)}}}{{@{{}}l}}{{\textit{{{name}}}}} \\")
            continue
        cells = [escaped(text) for text in line.texts]
        cells = [rf"\textbf{{{cell}}}" if line.marked and cell else cell for cell in cells]
        if table.grouped:
            cells[0] = rf"\quad {cells[0]}"
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])
