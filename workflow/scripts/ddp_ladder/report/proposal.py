"""proposal.md: the scalability section that applications for compute time ask for. Pure.

A form, of a centre or the default one, names its headings in their order and for each the PARTS that stand there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from ddp_ladder.common.formats import full_stop
from ddp_ladder.common.model import Model, Several
from ddp_ladder.report.document import Block, Document, Section
from ddp_ladder.report.parts import PARTS
from ddp_ladder.report.view import ReportView


class Heading(Model):
    """A heading of a form."""

    title: Annotated[str, Field(min_length=1)]
    parts: Several[str]  # names in PARTS, of what stands below it


class Chapter(Model):
    """A part of a form that begins a page."""

    title: str = ""
    max_pages: Annotated[int, Field(ge=1)] | None = None  # that the form allows
    headings: Several[Heading] = Field(min_length=1)


def proposal(view: ReportView, form: Sequence[Chapter] = (), rules: Sequence[Section] = ()) -> Document:
    """Return the section; if nothing was measured, one that says so.

    form: of a centre; none: the default one. rules: the section of a centre's rules, for the default one.
    """
    title = view.title.replace("Scaling of", "Scalability of", 1)
    ending = f"Written by ddp-ladder on {view.written_on.isoformat()} from the records of {len(view.runs)} runs."
    if not view.decisions:
        next_step = f" Next: {full_stop(view.headline.next)}" if view.headline.next else ""
        words = f"There is nothing to write yet. {full_stop(view.headline.text)}{next_step}"
        return Document(title, (Section("No measurement", (Block(words),)), *rules), ending)
    sections = [
        Section(
            heading.title, tuple(block for part in heading.parts for block in PARTS[part](view)), chapter=chapter.title
        )
        for chapter in form or DEFAULT
        for heading in chapter.headings
    ]
    sections[-1:-1] = rules
    return Document(title, tuple(section for section in sections if section.blocks), ending)


HEADINGS = {
    "Software and test case": ("purpose", "parallel", "reading", "test case"),
    "Machine": ("machine", "nodes", "software"),
    "Method": ("method",),
    "Results": ("headline", "scaling", "total time", "peak", "throughput", "efficiency"),
    "Why it does not scale further": ("losses",),
    "Requested resources": ("request",),
    "Limits of these measurements": ("limits",),
    "Where each figure comes from": ("sources",),
}
DEFAULT = (Chapter(headings=tuple(Heading(title=title, parts=parts) for title, parts in HEADINGS.items())),)
