"""A document: sections of paragraphs, lists, tables and pictures, as HTML, Markdown and CSV. Pure."""

from __future__ import annotations

import csv
import io
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ddp_ladder import __version__
from ddp_ladder.common import formats
from ddp_ladder.common.files import REPORT

Link = tuple[str, str]  # address, words
BLANK = re.compile(r"\[FILL IN: ([^\[\]|]*)\|([^\[\]]*)\]")  # a mark of what a person must fill in


@dataclass(frozen=True)
class Cell:
    """A text of a table, its heading or a list, with what stands beside it."""

    text: str
    lead: str = ""  # bold words before it
    small: tuple[str, ...] = ()  # lines below it
    value: float | str | None = None  # by which its column is sorted
    style: str = ""  # classes of the page
    links: tuple[Link, ...] = ()  # to files beside the document

    @property
    def in_words(self) -> str:
        """Return everything on one line."""
        lead = f"{self.lead}: " if self.lead else ""
        return f"{lead}{' '.join(filter(None, (self.text, *self.small)))}"


Content = str | Cell


@dataclass(frozen=True)
class Block:
    """A paragraph, a list, a table or a picture."""

    text: str = ""  # of a picture the caption
    heading: str = ""
    summary: str = ""  # what stands for it while it is closed; empty if it is open
    name: str = ""  # of a table, for screen readers
    style: str = ""  # classes of the page
    items: tuple[Content, ...] = ()  # of a list
    headings: tuple[Content, ...] = ()  # of a table
    rows: tuple[tuple[Content, ...], ...] = ()
    figures: int = 0  # the last columns of a table, which are right-aligned
    picture: str = ""  # a file name without its ending

    @property
    def kind(self) -> Literal["picture", "table", "list", "text"]:
        return "picture" if self.picture else "table" if self.headings else "list" if self.items else "text"

    @property
    def texts(self) -> Iterator[str]:
        """Yield every text that a person may have to complete."""
        yield self.text
        for content in (*self.items, *(cell for row in self.rows for cell in row)):
            yield in_words(content)


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it."""

    title: str
    blocks: tuple[Block, ...]
    style: str = ""  # classes of the page
    chapter: str = ""  # of a form, which begins a page

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
        blanks = (
            (section.title, what, where)
            for section in self.sections
            for block in section.blocks
            for text in block.texts
            for what, where in BLANK.findall(text)
        )
        return tuple(dict.fromkeys(blanks))


LONGEST = 22  # characters of a name in a terminal
MOST_ROWS = 24  # a longer table is closed at first, and not printed then


def table_block(
    name: str, headings: Sequence[Content], rows: Sequence[tuple[Content, ...]], what: str, style: str = ""
) -> Block:
    """Return a table that is closed if it is long. what: the rows."""
    is_long = len(rows) > MOST_ROWS
    summary, style = (f"Table of {len(rows)} {what}", style) if is_long else ("", f"{style} whole")
    return Block(name=name, summary=summary, style=style, headings=tuple(headings), rows=tuple(rows))


def in_words(content: Content) -> str:
    """Return a cell, or a text, on one line."""
    return content.in_words if isinstance(content, Cell) else content


def blank(what: str, where: str) -> str:
    """Return the mark of something that a person must fill in. where: to find it, for the list of all marks."""
    return f"[FILL IN: {what}|{where}]"


def csv_text(rows: Iterable[Mapping[str, object]], columns: Iterable[str] = ()) -> str:
    """Return a header and the rows: fractions with six digits, whole numbers with all of theirs, unknown is empty.

    columns: of the rows; all of the first one if empty.
    """
    rows, out = list(rows), io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = [*columns] or [*rows[0]]
    writer.writerow(columns)
    for row in rows:
        writer.writerow([csv_value(row[key]) for key in columns])
    return out.getvalue()


def csv_value(value: object) -> object:
    """Return a value as tables and their sorting need it: a fraction with six digits."""
    return f"{value:.6g}" if isinstance(value, float) else value


# --- Plain text, and a document as HTML and Markdown.


def plain(text: str) -> str:
    """Return text with signs that every terminal has."""
    for sign, plain_sign in ((formats.NARROW_SPACE, " "), (formats.DASH, "-"), ("“", '"'), ("”", '"')):
        text = text.replace(sign, plain_sign)
    return text


def as_html(template: str, files: Mapping[str, str | bytes] | None = None, **values: Any) -> str:
    """Return a page from a template; every text is escaped. files: its pictures are those that are SVG."""
    environment = _environment(autoescape=True)
    environment.filters.update(
        cell=lambda content: content if isinstance(content, Cell) else Cell(content), in_digits=csv_value
    )
    svgs = {name: data for name, data in (files or {}).items() if name.endswith(".svg") and isinstance(data, bytes)}
    script = (REPORT / "report.js").read_text()
    return environment.get_template(template).render(
        **values,
        version=__version__,
        css=(REPORT / "report.css").read_text(),
        script=script,
        script_hash=f"sha256-{_base64(sha256(script.encode()).digest())}",
        pictures={n.removesuffix(".svg"): f"data:image/svg+xml;base64,{_base64(svg)}" for n, svg in svgs.items()},
    )


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def as_markdown(document: Document) -> str:
    """Return the document as Markdown; long tables are closed (<details>)."""
    environment = _environment()
    environment.filters.update(escape=markdown_text, text=_with_marks)
    return re.sub(r"\n{3,}", "\n\n", environment.get_template("document.md.j2").render(document=document))


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
    environment.filters.update({function.__name__: function for function in filters}, raw=Markup)
    return environment


# --- Escaped texts.

_BLANK = re.compile(r"\\\[FILL IN: ([^\[\]|]*)\\\|[^\[\]]*\\\]")  # BLANK, escaped


def markdown_text(text: str) -> str:
    """Return text on one line, escaped for Markdown and HTML."""
    flat = " ".join(text.split())
    for sign in ("\\", "`", "*", "_", "|", "[", "]", "$", "~"):
        flat = flat.replace(sign, f"\\{sign}")
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _with_marks(content: Content) -> str:
    """Return escaped text in which the blanks are bold, without where to find them."""
    return _BLANK.sub(r"**\[FILL IN: \1\]**", markdown_text(in_words(content)))
