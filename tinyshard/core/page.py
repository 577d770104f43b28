"""What a notebook shows: HTML with its style, in one place for programs, tables, questions and errors.

    page(table("sent", ("kind", "bytes"), [("all_reduce", "64")]))     one `<div>` with the rules of STYLE that it uses
    show(Drawing(text, html))                                            a notebook draws the HTML, a terminal prints

Nothing here names a colour of the page: letters have the colour around them, rules and grounds are a translucent grey,
so that they are right on light pages and on dark ones. JupyterLab's theme need not be that of the system, so
`prefers-color-scheme` would be wrong there; and ipywidgets gives the names of JupyterLab's colours light values in
VS Code's dark theme. What does have a colour brings its own ink.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from tinyshard.core.users_code import ipython_shell

_CODE = (
    "font:12px/1.5 var(--jp-code-font-family,ui-monospace,Menlo,Consolas,monospace);color:inherit;white-space:pre-wrap"
)

# The rules of a page, by class without its "ts-", or by the beginning of a tag: a page has those of what is in it.
# JupyterLab styles the tables and the code of all outputs: what it sets is set here too.
STYLE = {
    "page": ".ts-page{font:13px/1.5 var(--jp-ui-font-family,system-ui,sans-serif);max-width:60em;"
    "color:inherit;overflow-wrap:break-word}.ts-page svg{color:inherit!important}",
    "<code": f".ts-page code{{{_CODE};background:none!important;padding:0!important;margin:0}}",
    "<pre": f".ts-page pre{{{_CODE};background:none;padding:0;margin:4px 0 0}}",
    "<summary": ".ts-page summary{cursor:pointer;padding:3px 0}",
    "wide": ".ts-wide{max-width:100%;overflow-x:auto}",
    "table": ".ts-page .ts-table{border-collapse:collapse;margin:0;table-layout:auto;font-size:inherit;border:0}"
    ".ts-page .ts-table caption{text-align:left;font-weight:600;padding:8px 0 2px;caption-side:top;white-space:nowrap}"
    ".ts-page .ts-table :is(td,th){text-align:left;vertical-align:middle;padding:3px 12px 3px 0;border:0;"
    "border-bottom:1px solid rgba(128,128,128,.22);font-weight:400;max-width:34em;white-space:normal}"
    ".ts-page .ts-table tr{background:none!important}"
    ".ts-page .ts-table thead th{font-size:11px;opacity:.8;border-color:rgba(128,128,128,.6);vertical-align:bottom}",
    "facts": ".ts-page .ts-facts{border-collapse:collapse;margin:0;font-size:inherit;border:0;table-layout:auto}"
    ".ts-page .ts-facts tr{background:none!important}"
    ".ts-page .ts-facts :is(td,th){text-align:left;vertical-align:top;padding:2px 10px 2px 0;border:0}"
    ".ts-page .ts-facts th{font-weight:600}",
    "short": ".ts-page :is(code,span,td).ts-short{white-space:nowrap}",
    "beside": ".ts-page.ts-beside{display:flex;flex-wrap:wrap;gap:8px 24px;align-items:flex-start;max-width:none}"
    ".ts-beside>div{max-width:40em}",
    "n": ".ts-page .ts-table .ts-n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}",
    "program": ".ts-page.ts-program{max-width:90em}.ts-program>.ts-wide{margin-top:6px}",
    "mesh": ".ts-mesh{display:flex;gap:10px;align-items:center;margin:4px 0 8px}",
    "line": ".ts-page .ts-table .ts-line th{background:rgba(128,128,128,.12);padding:3px 8px;max-width:none}",
    "body": ".ts-page .ts-table td.ts-body{padding:2px 0 8px 24px;max-width:none}",
    "flow": ".ts-flow{display:flex;flex-wrap:wrap;gap:3px 12px;align-items:center}",
    "value": ".ts-value{display:inline-flex;gap:6px;align-items:center;line-height:1.3}"
    ".ts-page .ts-value code{white-space:nowrap}",
    # in a narrow window a step takes two lines: what it takes and the bytes sent; what it makes and the memory
    "op": ".ts-page .ts-table .ts-op{white-space:nowrap}"
    ".ts-program>.ts-wide,.ts-program>details>.ts-wide{container-type:inline-size}"
    "@container (max-width:700px){.ts-program .ts-table:has(>tbody>tr>.ts-op){display:block;"
    ">*{display:block}"
    ">*>tr{display:grid;grid-template-columns:10em minmax(0,1fr) auto;gap:0 10px;align-items:center;padding:3px 0;"
    "border-bottom:1px solid rgba(128,128,128,.22)}"
    ">thead>tr{border-color:rgba(128,128,128,.6)}"
    ">*>tr>:is(td,th){border:0;padding:1px 0;max-width:none;grid-area:1/1/3/2}"
    ">*>tr>:nth-child(2){grid-area:1/2}>*>tr>:nth-child(3){grid-area:2/2}"
    ">*>tr>:nth-child(4){grid-area:1/3}>*>tr>:nth-child(5){grid-area:2/3}"
    ">*>tr>:nth-child(3){display:flex;gap:5px;align-items:center}>*>tr>:nth-child(3)::before{content:'\\2192'}"
    ">*>tr>[colspan]{grid-area:1/2/3/-1}"
    ">*>tr>:is(.ts-body,[colspan]:first-child){grid-area:1/1/3/-1}"
    ">*>tr:has(.ts-why)>:nth-child(1){grid-area:1/1/2/-1}"
    ">*>tr:has(.ts-why)>:is(:nth-child(2),:nth-child(4)){grid-row:2}"
    ">*>tr:has(.ts-why)>:is(:nth-child(3),:nth-child(5)){grid-row:3}.ts-why{max-width:none}"
    ">*>.ts-line>th{padding:3px 8px}code{font-size:11px}"
    ".ts-op code,.ts-value code{white-space:pre-wrap;overflow-wrap:anywhere}"
    ".ts-chip{padding:1px 4px;font-size:12px}.ts-bar{width:40px;margin-right:4px}.ts-words{width:auto}}}",
    "why": ".ts-why{white-space:normal;max-width:18em}",
    "pic": ".ts-pic{flex:none}",
    "arg": ".ts-arg{font-size:12px}",
    "soft": ".ts-soft{opacity:.75}",
    # in a narrow window the line that made an Array stands below the rest
    "any": ".ts-any{display:block;min-width:11em}.ts-program>.ts-wide{container-type:inline-size}"
    "@container (max-width:700px){.ts-program .ts-table:has(.ts-any){display:block;"
    ">*{display:block}"
    ">*>tr{display:grid;grid-template-columns:6.5em max-content minmax(0,1fr);gap:0 12px;align-items:baseline;"
    "padding:3px 0;border-bottom:1px solid rgba(128,128,128,.22)}"
    ">*>tr>:is(td,th){border:0;padding:1px 0;max-width:none}>*>tr>:nth-child(4){grid-area:2/2/3/-1}}}",
    "small": ".ts-small{font-size:11px}",
    "head": ".ts-head{font-weight:600;margin:6px 0 4px}.ts-page .ts-head code{font-weight:inherit}",
    "bar": ".ts-bar{display:inline-block;vertical-align:middle;width:60px;height:9px;margin-right:8px;"
    "border-radius:2px;background:rgba(128,128,128,.2)}"
    ".ts-bar i{display:block;height:100%;border-radius:2px;background:#0072b2}"
    ".ts-bar i.ts-top{background:#d55e00}",
    "words": ".ts-words{display:inline-block;width:5.5em;text-align:left}",
    "chip": ".ts-chip{border-radius:3px;padding:1px 6px;font-weight:600;white-space:nowrap}",
    "card": ".ts-card{border:1px solid rgba(128,128,128,.45);border-left:5px solid #999;border-radius:4px;"
    "padding:8px 14px;margin:4px 0}.ts-card dl{display:grid;gap:4px 12px;margin:4px 0 0;"
    "grid-template-columns:max-content minmax(0,1fr)}.ts-card :is(dt,dd){float:none;width:auto;margin:0;padding:0}"
    ".ts-card dt{opacity:.75;font-weight:400}.ts-card dd{white-space:pre-line}",
    "all": ".ts-card dd.ts-all{grid-column:1/-1}",
    "is-right": ".ts-card.ts-is-right{border-left-color:#009e73}",
    "is-wrong": ".ts-card.ts-is-wrong{border-left-color:#d55e00}",
    "is-asked": ".ts-card.ts-is-asked{border-left-color:#56b4e9}",
}


_PAGE = re.compile(r'(<div class="ts-page[^"]*">)<style>.*?</style>(.*)', re.DOTALL)  # what `page` makes
_STARS = re.compile(r"(?<![\w*])\*(\w(?:[\w ]*\w)?)\*(?![\w*])")
_PART = re.compile(r"^  (got|rule|try): +(.*)$")  # a line of an error's text


@dataclass(frozen=True)
class Drawing:
    """What is printed as text, and drawn in a notebook.

    Attributes:
        text: for a terminal.
        html: for a notebook; the same for the same text.
    """

    text: str
    html: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return self.html


def show(drawing: Drawing) -> None:
    """Draw in a notebook, print in a terminal.

    Communication: none.

    Example:
        >>> show(Drawing("8 devices", "<b>8</b> devices"))
        8 devices
    """
    shell = ipython_shell()
    if getattr(shell, "kernel", None) is None:
        builtins.print(drawing.text)
    else:
        shell.display_pub.publish({"text/plain": drawing.text, "text/html": drawing.html})


def page(body: str, classes: str = "") -> str:
    """One `<div>` without ids or scripts, with the rules that its classes need; the same for the same body.

    Communication: none.

    Example:
        >>> html = page('<p class="ts-soft">nothing</p>')
        >>> ".ts-soft{" in html, ".ts-table{" in html
        (True, False)
    """
    opened = f'<div class="ts-page{f" {classes}" if classes else ""}">'
    return f"{opened}<style>{_rules(opened + body)}</style>{body}</div>"


def restyled(html: str) -> str:
    """A page that was stored, with the rules of today; other HTML is unchanged.

    Communication: none.

    Example:
        >>> restyled(page("<p>old</p>").replace("13px", "8px")) == page("<p>old</p>")
        True
    """
    found = _PAGE.match(html)
    return f"{found[1]}<style>{_rules(found[1] + found[2])}</style>{found[2]}" if found else html


def _rules(body: str) -> str:
    """The rules that the classes and tags in it need."""
    used = {name.removeprefix("ts-") for name in re.findall(r"ts-[\w-]+|<[a-z]+", body)}
    return "".join(rule for name, rule in STYLE.items() if name in used)


@dataclass(frozen=True)
class Cell:
    """A cell of a table that is HTML already."""

    html: str


Content = str | int | Cell


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Content]]) -> str:
    """A table that scrolls where it is too wide, by the keyboard too; numbers stand on the right.

    Args:
        caption: what it shows.
        head: the names of the columns; a column whose name begins with ">" has numbers.
        rows: the first cell of each names it.

    Communication: none.
    """
    classes = [' class="ts-n"' if name.startswith(">") else "" for name in head]

    def row(cells: Sequence[Content]) -> str:
        tags = ['th scope="row"', *["td"] * (len(cells) - 1)]
        return (
            "<tr>"
            + "".join(
                f"<{tag}{of}>{html_of(cell)}</{tag[:2]}>" for tag, of, cell in zip(tags, classes, cells, strict=True)
            )
            + "</tr>"
        )

    named = "".join(
        f'<th scope="col"{of}>{escape(name.lstrip(">"))}</th>' for name, of in zip(head, classes, strict=True)
    )
    return scrolled(
        f'<table class="ts-table"><caption>{escape(caption)}</caption><thead><tr>{named}</tr></thead>'
        f"<tbody>{''.join(map(row, rows))}</tbody></table>",
        caption,
    )


def scrolled(body: str, label: str) -> str:
    """What may be wider than the page: it is scrolled, by the arrow keys too."""
    return f'<div class="ts-wide" tabindex="0" role="region" aria-label="{escape(label)}">{body}</div>'


def html_of(cell: Content) -> str:
    """A cell as HTML; numbers with commas."""
    return cell.html if isinstance(cell, Cell) else f"{cell:,}" if isinstance(cell, int) else escape(cell)


def bar(value: float, most: float, words: str, *, is_top: bool = False) -> Cell:
    """A bar as long as a value is beside the largest one, and the value in words."""
    share = min(100, round(100 * value / most)) if most else 0
    top = ' class="ts-top"' if is_top else ""
    return Cell(
        f'<span class="ts-bar"><i{top} style="width:{share}%"></i></span><span class="ts-words">{escape(words)}</span>'
    )


def card(kind: str, heading: str, lines: Sequence[tuple[str, str]], rest: str = "") -> str:
    """A heading, and below it named lines.

    Args:
        kind: "right", "wrong" or "asked": the colour at its side, which says nothing that its words don't.
        heading: in bold.
        lines: a name and words for each; the name may be "".
        rest: HTML that follows.

    Communication: none.
    """
    named = "".join(
        f"<dt>{escape(name)}</dt><dd>{marked(words)}</dd>" if name else f'<dd class="ts-all">{marked(words)}</dd>'
        for name, words in lines
    )
    listed = f"<dl>{named}</dl>" if named else ""
    return page(f'<div class="ts-card ts-is-{kind}"><div class="ts-head">{marked(heading)}</div>{listed}{rest}</div>')


def error_html(words: str) -> str:
    """The text of an error on a card: the problem above, its parts below it, each behind its name.

    Example:
        >>> "<dt>rule</dt><dd>4 divides it</dd>" in error_html("it is odd\\n  got:  3\\n  rule: 4 divides it")
        True
    """
    problem: list[str] = []
    parts: list[tuple[str, list[str]]] = []
    for line in words.splitlines():
        found = _PART.match(line)
        if found:
            parts.append((found[1], [found[2]]))
        elif parts:
            parts[-1][1].append(line.strip())
        else:
            problem.append(line)
    rest = f"<pre>{escape(chr(10).join(problem[1:]))}</pre>" if len(problem) > 1 else ""
    return card("wrong", problem[0] if problem else "", [(name, "\n".join(lines)) for name, lines in parts], rest)


def marked(words: str) -> str:
    """Words as HTML; what is between backticks is code, *a word* between stars is emphasized.

    Example:
        >>> marked("`x < 1` holds for *one* x")
        '<code>x &lt; 1</code> holds for <em>one</em> x'
    """
    parts = escape(words, quote=False).split("`")
    if len(parts) % 2 == 0:  # a backtick that opens nothing
        return "`".join(parts)
    parts[::2] = [_STARS.sub(r"<em>\1</em>", part) for part in parts[::2]]
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
