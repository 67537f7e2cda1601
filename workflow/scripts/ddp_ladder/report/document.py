"""A document of sections, written as Markdown and as LaTeX from the same content. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ddp_ladder.common.paths import REPORT
from ddp_ladder.report.escape import BLANK, markdown_text, markdown_with_blanks, tex_text, tex_with_blanks


@dataclass(frozen=True)
class Block:
    """A paragraph, a list, a table or a picture; the source of its figures is shown below it.

    items: of a list. headings, rows: of a table, whose last columns (figures) are right-aligned; widths: of its
    columns, relative to each other, in LaTeX. picture: a file name without its ending; text is then the caption.
    """

    text: str = ""
    items: tuple[str, ...] = ()
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    figures: int = 0
    widths: tuple[float, ...] = ()
    picture: str = ""
    source: str = ""

    @property
    def kind(self) -> Literal["picture", "table", "list", "text"]:
        return "picture" if self.picture else "table" if self.headings else "list" if self.items else "text"

    @property
    def texts(self) -> Iterator[str]:
        """Yield every text that a person may have to complete."""
        yield self.text
        yield from self.items
        for row in self.rows:
            yield from row

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
    """A heading with what stands below it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """Title, sections, and the last line."""

    title: str
    sections: tuple[Section, ...]
    ending: str

    @property
    def blanks(self) -> tuple[tuple[str, str], ...]:
        """Return what a person must fill in, each with its section."""
        return tuple(
            dict.fromkeys(
                (section.title, what)
                for section in self.sections
                for block in section.blocks
                for text in block.texts
                for what in BLANK.findall(text)
            )
        )


def as_markdown(document: Document) -> str:
    """Return the document as Markdown."""
    environment = _environment()
    environment.filters.update(escape=markdown_text, text=markdown_with_blanks)
    return environment.get_template("proposal.md.j2").render(document=document)


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
    environment.filters.update(escape=tex_text, text=tex_with_blanks)
    return environment.get_template("proposal.tex.j2").render(document=document)


def _environment(**delimiters: str) -> Environment:
    return Environment(
        loader=FileSystemLoader(REPORT),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **delimiters,  # type: ignore[arg-type]
    )
