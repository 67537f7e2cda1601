"""Colours, markers and lines of all plots."""

from __future__ import annotations

from typing import Any

# Okabe and Ito: distinct with any colour vision; the markers are distinct without any colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, GREY, PALE, BAND, PAPER = "#1f2933", "#6b7785", "#d5dae0", "#f4f6f8", "#ffffff"
BAD = "#9b1c1c"
CROWD = "#9fabb7"  # variants of which there are too many for a colour each
ON_BRIGHT = "#111111"  # text on a coloured area: dark in the dark mode too
SHADES = {
    "start-up": "#dfe3e8",
    "warm-up": "#fbe9b7",
    "validation": "#c3daf0",
    "between": "#efc9b8",
    "epoch": "#f0f2f4",
}
# The CSS variables of the page by colour, beside --plot-0 to --plot-6; report.css sets them in the dark mode.
VARIABLES = {
    INK: "plot-ink",
    GREY: "plot-grey",
    PALE: "plot-pale",
    BAND: "plot-band",
    PAPER: "plot-paper",
    BAD: "plot-bad",
    CROWD: "plot-crowd",
    **{colour: f"plot-{name}" for name, colour in SHADES.items()},
}
STYLE: dict[Any, Any] = {  # matplotlib types the keys as a literal of all its settings
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture on every machine
    "font.size": 9,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.labelpad": 6,  # a page's own font may be wider
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.handlelength": 1.6,
    "text.parse_math": False,  # a variant may have a dollar sign in its name
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "ddp-ladder",  # fixed ids: the same records give the same file
}
IDEAL: dict[str, Any] = {"linewidth": 0.9, "linestyle": (0, (1, 1.6))}
HALF: dict[str, Any] = {"linewidth": 0.9, "linestyle": (0, (5, 3))}  # half the ideal
