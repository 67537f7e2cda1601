"""Text of any kind as Markdown and as LaTeX. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

BLANK = re.compile(r"\[FILL IN: ([^\[\]]*)\]")


def blank(what: str) -> str:
    """Return the mark of something that a person must fill in."""
    return f"[FILL IN: {what}]"


def markdown_text(text: str) -> str:
    """Return text on one line, escaped for Markdown and HTML."""
    flat = " ".join(text.split())
    for sign in ("\\", "`", "*", "_", "|", "[", "]", "$", "~"):
        flat = flat.replace(sign, f"\\{sign}")
    return flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], figures: int = 0) -> str:
    """Return a table, its cells escaped. figures: how many of the last columns are right-aligned."""
    rule = ["---"] * (len(header) - figures) + ["---:"] * figures
    lines = [header, rule, *[[markdown_text(cell) for cell in row] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown_with_blanks(text: str) -> str:
    """Return escaped text in which the blanks are bold."""
    return _with_blanks(" ".join(text.split()), markdown_text, lambda what: f"**\\[FILL IN: {markdown_text(what)}\\]**")


_TEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%",
    "_": r"\_\allowbreak{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "`": r"\`{}", "/": r"/\allowbreak{}", "=": r"=\allowbreak{}",
    "[": "{[}", "]": "{]}",  # after \\ and \item they would be options
    "\u2013": r"\textendash{}", "\u2014": r"\textemdash{}", "\u00a0": "~", "\u2026": r"\ldots{}",
    "\u2018": "`", "\u2019": "'",
    "\u201c": "``", "\u201d": "''", "\u00b5": r"$\mu$", "\u03bc": r"$\mu$", "\u00d7": r"$\times$",
    "\u2265": r"$\geq$", "\u2264": r"$\leq$", "\u00b1": r"$\pm$", "\u00b0": r"$^\circ$", "\u00b7": r"$\cdot$",
    "\u2192": r"$\rightarrow$", "\u00df": r"\ss{}", "\u00e6": r"\ae{}", "\u00c6": r"\AE{}", "\u00f8": r"\o{}",
    "\u00d8": r"\O{}", "\u0142": r"\l{}", "\u0141": r"\L{}", "\u0153": r"\oe{}", "\u2060": "",
}  # fmt: skip
_ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u", "\u0307": ".",
    "\u0308": '"', "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0327": "c",
}  # fmt: skip


def tex_text(text: str) -> str:
    """Return text on one line as LaTeX in ASCII, for every engine; a character that it lacks becomes [U+4E2D]."""
    flat = re.sub(r"[ \t\r\n\f\v]+", " ", text).strip()
    return re.sub(r"(?<=-)-", "{-}", "".join(_tex_sign(sign) for sign in flat))


def _tex_sign(sign: str) -> str:
    if sign in _TEX:
        return _TEX[sign]
    if " " <= sign <= "~":
        return sign
    parts = unicodedata.normalize("NFD", sign)
    letter, mark = parts[0], parts[1:]
    if letter.isascii() and letter.isalpha() and mark in _ACCENTS:
        return rf"\{_ACCENTS[mark]}{{{letter}}}"
    return f"{{[}}U+{ord(sign):04X}{{]}}"


def tex_with_blanks(text: str) -> str:
    r"""Return escaped text in which the blanks are arguments of \fillin."""
    return _with_blanks(text, tex_text, lambda what: rf"\fillin{{{tex_text(what)}}}")


def _with_blanks(text: str, escape: Callable[[str], str], mark: Callable[[str], str]) -> str:
    parts = BLANK.split(text)  # text, blank, text, blank, ..., text
    shown = [mark(part) if k % 2 else _escaped_inside(part, escape) for k, part in enumerate(parts)]
    return "".join(shown).strip()


def _escaped_inside(text: str, escape: Callable[[str], str]) -> str:
    """Return escaped text that keeps a space at its ends."""
    return f"{' ' * text[:1].isspace()}{escape(text)}{' ' * (len(text) > 1 and text[-1].isspace())}"
