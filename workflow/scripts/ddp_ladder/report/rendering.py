"""A document as HTML, Markdown and LaTeX. Pure."""

from __future__ import annotations

import re
import unicodedata
from base64 import b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ddp_ladder import __version__
from ddp_ladder.common import formats
from ddp_ladder.common.files import REPORT
from ddp_ladder.report.document import BLANK, Cell, Document, csv_value, in_words


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
    parts = BLANK.split(text)  # text, blank, where, text, blank, where, ..., text
    marked = (mark(part) if k % 3 else _escaped_inside(part, escape) for k, part in enumerate(parts) if k % 3 != 2)
    return "".join(marked).strip()


def _escaped_inside(text: str, escape: Callable[[str], str]) -> str:
    """Return escaped text that keeps a space at its ends."""
    return f"{' ' * text[:1].isspace()}{escape(text)}{' ' * (len(text) > 1 and text[-1].isspace())}"
