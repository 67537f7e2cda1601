"""A document of sections, rendered as HTML, Markdown and LaTeX from the same content; and CSV. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ddp_ladder.common import formats
from ddp_ladder.common.files import REPORT

Link = tuple[str, str]  # address, words


@dataclass(frozen=True)
class Cell:
    """A text of a table, its heading or a list, with what stands beside it.

    lead: bold words before it. small: lines below it. value: by which its column is sorted. style: classes of the page.
    links: to files beside the document.
    """

    text: str
    lead: str = ""
    small: tuple[str, ...] = ()
    value: float | str | None = None
    style: str = ""
    links: tuple[Link, ...] = ()

    @property
    def in_words(self) -> str:
        """Return everything on one line."""
        lead = f"{self.lead}: " if self.lead else ""
        return f"{lead}{' '.join(filter(None, (self.text, *self.small)))}"


Content = str | Cell


@dataclass(frozen=True)
class Block:
    """A paragraph, a list, a table or a picture.

    summary: what stands for it while it is closed; empty if it is open. name: of a table, for screen readers. style:
    classes of the page; in LaTeX, a "tall" picture has half a page. items: of a list. headings, rows: of a table, whose
    last columns (figures) are right-aligned; widths: of its columns, relative to each other, in LaTeX. picture: a file
    name without its ending; text is then the caption.
    """

    text: str = ""
    heading: str = ""
    summary: str = ""
    name: str = ""
    style: str = ""
    items: tuple[Content, ...] = ()
    headings: tuple[Content, ...] = ()
    rows: tuple[tuple[Content, ...], ...] = ()
    figures: int = 0
    widths: tuple[float, ...] = ()
    picture: str = ""

    @property
    def kind(self) -> Literal["picture", "table", "list", "text"]:
        return "picture" if self.picture else "table" if self.headings else "list" if self.items else "text"

    @property
    def texts(self) -> Iterator[str]:
        """Yield every text that a person may have to complete."""
        yield self.text
        for content in (*self.items, *(cell for row in self.rows for cell in row)):
            yield in_words(content)

    @property
    def tex_columns(self) -> tuple[tuple[str, str], ...]:
        r"""Return the alignment and the width of each column, as a fraction of \linewidth."""
        widths = self.widths or (1.0,) * len(self.headings)
        first_figure = len(self.headings) - self.figures
        return tuple(
            (r"\raggedleft" if k >= first_figure else r"\raggedright", f"{width / sum(widths):.3f}")
            for k, width in enumerate(widths)
        )


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it. style: classes of the page. chapter: of a form, which begins a page."""

    title: str
    blocks: tuple[Block, ...]
    style: str = ""
    chapter: str = ""

    @property
    def id(self) -> str:
        """Return the title as the target of a link."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Document:
    """Title, sections, and the last line."""

    title: str
    sections: tuple[Section, ...]
    ending: str = ""

    @property
    def chapters(self) -> tuple[tuple[str, tuple[Section, ...]], ...]:
        """Return the sections of each chapter; all of them in one without a title if there are none."""
        return tuple((title, tuple(own)) for title, own in groupby(self.sections, key=lambda section: section.chapter))

    @property
    def blanks(self) -> tuple[tuple[str, str, str], ...]:
        """Return what a person must fill in: its section, what it is, and where to find it."""
        return tuple(
            dict.fromkeys(
                (section.title, what, where)
                for section in self.sections
                for block in section.blocks
                for text in block.texts
                for what, where in BLANK.findall(text)
            )
        )


MOST_ROWS = 24  # a longer table is closed at first, and not printed then


def table_block(
    name: str, headings: Sequence[Content], rows: Sequence[tuple[Content, ...]], what: str, style: str = ""
) -> Block:
    """Return a table that is closed if it is long. what: the rows."""
    is_long = len(rows) > MOST_ROWS
    summary = f"Table of {len(rows)} {what}" if is_long else ""
    return Block(
        name=name,
        summary=summary,
        style=style if is_long else f"{style} whole",
        headings=tuple(headings),
        rows=tuple(rows),
    )


def in_words(content: Content) -> str:
    """Return a cell, or a text, on one line."""
    return content.in_words if isinstance(content, Cell) else content


def as_html(template: str, **values: Any) -> str:
    """Return a page from a template; every text is escaped."""
    environment = _environment(autoescape=True)
    environment.filters.update(cell=lambda content: content if isinstance(content, Cell) else Cell(content))
    return environment.get_template(template).render(**values)


def as_markdown(document: Document) -> str:
    """Return the document as Markdown; long tables are closed (<details>)."""
    environment = _environment()
    environment.filters.update(
        escape=markdown_text, text=lambda content: _marked(in_words(content), markdown_text, _md_blank)
    )
    return re.sub(r"\n{3,}", "\n\n", environment.get_template("document.md.j2").render(document=document))


def as_tex(document: Document) -> str:
    """Return the document as LaTeX that compiles by itself, in ASCII."""
    environment = _environment(
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
    )
    environment.filters.update(escape=tex_text, text=lambda content: _marked(in_words(content), tex_text, _tex_blank))
    return environment.get_template("document.tex.j2").render(document=document)


def csv_text(rows: Iterable[Mapping[str, object]], columns: list[str] | None = None) -> str:
    """Return a header and the rows: fractions with six digits, whole numbers with all of theirs, unknown is empty.

    columns: of the rows; all if None.
    """
    table = pd.DataFrame(list(rows), columns=columns, dtype=object)
    digits = table.map(lambda value: f"{value:.6g}" if isinstance(value, float) else value)
    return str(digits.to_csv(index=False, lineterminator="\n"))


def _environment(**options: Any) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(REPORT),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
    filters = (formats.stage_name, formats.capitalised, formats.full_stop)
    environment.filters.update({each.__name__: each for each in filters}, raw=Markup)
    return environment


# --- Escaped texts, and marks of what a person must fill in.

BLANK = re.compile(r"\[FILL IN: ([^\[\]|]*)\|([^\[\]]*)\]")


def blank(what: str, where: str) -> str:
    """Return the mark of something that a person must fill in. where: to find it, for the list of all marks."""
    return f"[FILL IN: {what}|{where}]"


def markdown_text(text: str) -> str:
    """Return text on one line, escaped for Markdown and HTML."""
    flat = " ".join(text.split())
    for sign in ("\\", "`", "*", "_", "|", "[", "]", "$", "~"):
        flat = flat.replace(sign, f"\\{sign}")
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_TEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%",
    "_": r"\_\allowbreak{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "`": r"\`{}", "/": r"/\allowbreak{}", "=": r"=\allowbreak{}",
    "[": "{[}", "]": "{]}",  # after \\ and \item they would be options
    "\u200b": r"\allowbreak{}", "\u2013": r"\textendash\penalty900{}",
    "\u2014": r"\textemdash{}", "\u00a0": "~", "\u2026": r"\ldots{}",
    "\u2018": "`", "\u2019": "'", "\u201c": "``", "\u201d": "''", "\u00b5": r"$\mu$", "\u03bc": r"$\mu$",
    "\u00df": r"\ss{}", "\u00e6": r"\ae{}", "\u00c6": r"\AE{}", "\u00f8": r"\o{}", "\u00d8": r"\O{}", "\u0142": r"\l{}",
    "\u0141": r"\L{}", "\u2192": r"$\rightarrow$", "\u2212": "$-$",
    "\u00d7": r"$\times$", "\u2265": r"$\geq$", "\u2264": r"$\leq$", "\u00b1": r"$\pm$", "\u00b0": r"$^\circ$",
}  # fmt: skip
_ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0308": '"', "\u030a": "r", "\u030c": "v",
    "\u0327": "c", "\u0304": "=", "\u0306": "u", "\u0307": ".", "\u030b": "H",
}  # fmt: skip


def _tex_sign(sign: str) -> str:
    if sign in _TEX or " " <= sign <= "~":
        return _TEX.get(sign, sign)
    letter, *accents = list(unicodedata.normalize("NFD", sign))
    if letter.isascii() and len(accents) == 1 and accents[0] in _ACCENTS:
        return rf"\{_ACCENTS[accents[0]]}{{{letter}}}"
    return f"{{[}}U+{ord(sign):04X}{{]}}"


def tex_text(text: str) -> str:
    """Return text on one line as LaTeX in ASCII, for every engine; a character that it lacks becomes [U+4E2D]."""
    flat = re.sub(r"[ \t\r\n\f\v]+", " ", text).strip()
    flat = re.sub(r"\w{20}(?=\w)", "\\g<0>\u200b", flat)  # a longer word may be wider than its column
    return re.sub(r"(?<=-)-", "{-}", "".join(map(_tex_sign, flat)))


def _md_blank(what: str) -> str:
    return f"**\\[FILL IN: {markdown_text(what)}\\]**"


def _tex_blank(what: str) -> str:
    return rf"\fillin{{{tex_text(what)}}}"


def _marked(text: str, escape: Callable[[str], str], mark: Callable[[str], str]) -> str:
    """Return escaped text in which the blanks are marked."""
    parts = BLANK.split(" ".join(text.split(" ")))  # text, blank, where, text, blank, where, ..., text
    marked = (mark(part) if k % 3 else _escaped_inside(part, escape) for k, part in enumerate(parts) if k % 3 != 2)
    return "".join(marked).strip()


def _escaped_inside(text: str, escape: Callable[[str], str]) -> str:
    """Return escaped text that keeps a space at its ends."""
    return f"{' ' * text[:1].isspace()}{escape(text)}{' ' * (len(text) > 1 and text[-1].isspace())}"
