"""Stacks of a rank's threads, as faulthandler or py-spy print them: what the rank was doing. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PROCESS = re.compile(r"^Process ([0-9]+): ")  # py-spy's first line: the main thread has this number
_HEADER = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+|[0-9]+)|^Stack \(most recent call first\):")
_FRAMES = (
    re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$'),  # faulthandler
    re.compile(r"^    (?P<function>\S+) \((?P<file>.+?)(?::(?P<line>\d+))?\)$"),  # py-spy
)
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python[0-9]|^<frozen |/ddp_ladder_instrument/|instrument\.py$"
)
_OWN = re.compile(r"/ddp_ladder_instrument/|/instrument\.py$")
_COLLECTIVE = ("torch/distributed/", "torch/nn/parallel/distributed.py")
_WRAPPERS = {"wrapper", "decorate_context", "_fn"}
_BACKWARD = "_engine_run_backward"
_LOADER = "torch/utils/data/dataloader.py"
_BUSY_FILES = (
    "torch/_dynamo/convert_frame.py",
    "torch/_inductor/compile_fx.py",
    "torch/serialization.py",
    "torch/distributed/checkpoint/",
    "/safetensors/",
    "/subprocess.py",
)
_BUSY_FUNCTION = re.compile(r"^(?!.*(?:train|fit|main|loop)).*(?:save|checkpoint|valid|eval)", re.IGNORECASE)


@dataclass(frozen=True)
class Frame:
    """A place in a program. line: None if it is not known."""

    file: str
    line: int | None
    function: str

    @property
    def is_of_script(self) -> bool:
        """True for the user's own code: no installed package, no standard library, not the instrument."""
        return not _LIBRARY.search(self.file)

    @property
    def text(self) -> str:
        """The line as Python's tracebacks show it."""
        return f'File "{self.file}", line {self.line if self.line is not None else "?"}, in {self.function}'


def without_own(text: str) -> str:
    """Return the stacks without the frames of the instrument, and without threads that have no others."""
    threads: list[list[str]] = [[]]
    for line in text.splitlines():
        if _HEADER.match(line):
            threads.append([])
        frame = _frame(line)
        if line.strip() and not (frame and _OWN.search(frame.file)):
            threads[-1].append(line)
    return "\n\n".join(
        "\n".join(lines) for lines in threads if len(lines) > 1 or (lines and not _HEADER.match(lines[0]))
    )


def main_stack(text: str, thread: int | None = None) -> list[Frame]:
    """Return the frames of the main thread, the most recent call first; empty if the text has none.

    thread: its identity for faulthandler, which begins with the youngest: without it, the last one is taken. A stack
        without an identity is the main thread's alone.
    """
    threads: list[list[Frame]] = []
    main: list[Frame] | None = None
    for line in text.splitlines():
        if process := _PROCESS.match(line):
            thread = int(process[1])
        elif header := _HEADER.match(line):
            threads.append([])
            if header[1] and int(header[1], 0) == thread:
                main = threads[-1]
        elif threads and (frame := _frame(line)):
            threads[-1].append(frame)
    return main if main is not None else threads[-1] if threads else []


def _frame(line: str) -> Frame | None:
    for pattern in _FRAMES:
        if found := pattern.match(line):
            number = found["line"]
            return Frame(found["file"], int(number) if number and number.isdigit() else None, found["function"])
    return None


def in_collective(stack: list[Frame]) -> bool:
    """Return True if the rank waits for others: in a call of torch.distributed, or of DDP, or in a backward pass.

    During a backward pass the gradients are reduced; a stack cannot tell this from computing.
    """
    if not stack:
        return False
    top = stack[0]
    return any(part in top.file for part in _COLLECTIVE) or top.function == _BACKWARD


def is_at_work(stack: list[Frame]) -> bool:
    """Return True if the rank saves, validates, compiles, or waits for a program that it started."""
    return any(
        any(part in frame.file for part in _BUSY_FILES)
        or (frame.is_of_script and _BUSY_FUNCTION.search(frame.function) is not None)
        for frame in stack
    )


def script_frame(stack: list[Frame]) -> Frame | None:
    """Return the deepest frame of the user's code; the deepest at all if there is none."""
    return next((frame for frame in stack if frame.is_of_script), stack[0] if stack else None)


def doing(stack: list[Frame]) -> str:
    """Return what the rank was doing besides the line of its script: ``in backward()``; empty if nothing is known."""
    if in_collective(stack):
        calls = [frame.function for frame in stack if any(part in frame.file for part in _COLLECTIVE)]
        named = next((name for name in reversed(calls) if name not in _WRAPPERS), "backward")
        return f"in {named}()"
    if any(_LOADER in frame.file for frame in stack):
        return "waiting for a batch of its DataLoader"
    if any(frame.function == "synchronize" for frame in stack):
        return "waiting for its GPU"
    return ""
