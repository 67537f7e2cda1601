"""A figure of matplotlib as SVG: one drawing for both the file and the page, and PNG.

In the page colours are CSS variables (report.css has those of the dark mode), and points can be reached with the
keyboard: an artist whose id is ``value_id(words)`` becomes a group with these words as its label.
"""

from __future__ import annotations

import io
import re
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from ddp_ladder.report.style import COLOURS, STYLE, VARIABLES

VALUE = "value:"


def value_id(words: str) -> str:
    """Return the id (``gid`` of matplotlib) of an artist that shows these words when it is pointed at."""
    return VALUE + " ".join(words.split())


class Drawing:
    """A figure that was laid out and drawn as SVG once. Its text stays text, in the font of where it is shown."""

    def __init__(self, figure: Figure) -> None:
        with rc_context(STYLE):
            if engine := figure.get_layout_engine():
                engine.execute(figure)
                figure.set_layout_engine(None)  # or each drawing would lay it out again
        self._figure = figure
        self._svg = self._saved("svg", metadata={"Date": None}).decode()

    @property
    def files(self) -> dict[str, bytes]:
        """Return the content of the files of this figure, by the end of their names."""
        return {"svg": self.file(), "png": self.png()}

    def png(self) -> bytes:
        """Return the figure as a PNG of 240 dots per inch."""
        return self._saved("png", metadata={"Software": None}, dpi=240)

    def file(self) -> bytes:
        """Return the figure as an SVG file; its values are titles, which browsers show."""
        return re.sub(rf'<g id="{VALUE}([^"]*)">', r"<g><title>\1</title>", self._svg).encode()

    def inline(self, name: str, title: str, description: str) -> str:
        """Return the figure as an element for an HTML page: own ids, no prologue, no metadata, colours as variables.

        title, description: plain text, escaped here.
        """
        text = self._svg
        text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
        text, values = re.subn(rf'<g id="{VALUE}([^"]*)">', r'<g class="value" role="img" aria-label="\1">', text)
        text = re.sub(r'\bid="', f'id="{name}-', text)
        text = text.replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
        text = text.replace("*{", f"#{name} *{{")  # its style sheet must not reach the page
        text = re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda colour: _variable(colour[0]), text)
        text = re.sub(r"\n\s+", "\n", re.sub(r' d="[^"]{200,}"', lambda path: _shortened(path[0]), text))
        head, body = text.split(">", 1)
        head = re.sub(r'\s(width|height|version|xmlns:xlink)="[^"]*"', "", head)
        role = "group" if values else "img"  # what is within an img is hidden from screen readers
        head += f' id="{name}" role="{role}" aria-labelledby="{name}-title {name}-desc"'
        words = f'<title id="{name}-title">{_escaped(title)}</title>'
        words += f'<desc id="{name}-desc">{_escaped(description)}</desc>'
        return f"{head}>{words}{body}".replace("xlink:href", "href")

    def _saved(self, kind: str, **options: Any) -> bytes:
        buffer = io.BytesIO()
        with rc_context(STYLE):
            self._figure.savefig(buffer, format=kind, **options)
        return buffer.getvalue()


_NAMES = {**{colour.lower(): f"plot-{k}" for k, colour in enumerate(COLOURS)}, **VARIABLES}


def _variable(colour: str) -> str:
    name = _NAMES.get(colour)
    return f"var(--{name}, {colour})" if name else colour


def _shortened(path: str) -> str:
    """Return a long path of an SVG with a tenth of a point as its resolution, in less than half the characters."""
    tenths = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), path)
    return re.sub(r"\s*([A-Z])\s*", r"\1", tenths)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
