"""A document as HTML and Markdown. Pure."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ddp_ladder import __version__
from ddp_ladder.common import formats
from ddp_ladder.common.files import REPORT
from ddp_ladder.report.document import Cell, Content, Document, csv_value, in_words


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
