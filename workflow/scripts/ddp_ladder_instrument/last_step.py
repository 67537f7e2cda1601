"""Where the script made its last step, and whether its loops were over when it failed.

An exception after the loops spoils no figure: all planned steps were made. One in a loop that made steps (a validation
between two epochs) may have cut the training short, even if no step would have followed.
"""

from __future__ import annotations

import ast
import dis
import importlib
import linecache
import math
import sys
from types import CodeType, TracebackType
from typing import Optional

from ddp_ladder_instrument.compiler import eager

LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class LastStep:
    """The calls that led to the last optimizer step, innermost first: code, and offset of the instruction."""

    def __init__(self) -> None:
        self._calls: list[tuple[CodeType, int]] = []

    def install(self) -> None:
        """Look at each optimizer step."""
        optimizer = importlib.import_module("torch.optim.optimizer")
        optimizer.register_optimizer_step_post_hook(eager(self._note))

    def _note(self, *_: object) -> None:
        frame, calls = sys._getframe(1), []
        while frame is not None:
            calls.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back  # type: ignore[assignment]
        self._calls = calls

    def loops_were_over(self, error: BaseException) -> bool:
        """Return True if no loop that made the last step was running when this was raised, nor what led to it."""
        steps = self._calls[::-1]
        if error.__traceback__ is None or error.__traceback__.tb_frame.f_code not in (code for code, _ in steps):
            return False
        chain: list[BaseException] = [error]
        for one in chain:  # it grows
            chain += [each for each in (one.__cause__, one.__context__) if each is not None and each not in chain]
        return all(_after_loops(steps, one.__traceback__) for one in chain)


def _after_loops(steps: list[tuple[CodeType, int]], trace: Optional[TracebackType]) -> bool:
    """Compare a step's calls with a traceback, both outermost first, as far as they are the same calls.

    What was caught in a function that is none of the step's calls interrupted none of its loops.
    """
    place = next((k for k, (code, _) in enumerate(steps) if trace and code is trace.tb_frame.f_code), len(steps))
    for code, offset in steps[place:]:
        if trace is None or trace.tb_frame.f_code is not code:
            break
        step_line = [line for begin, line in dis.findlinestarts(code) if begin <= offset and line][-1]
        if trace.tb_lineno <= _end_of_loops(code, step_line):
            return False
        if trace.tb_lineno != step_line:
            break
        trace = trace.tb_next
    return True


def _end_of_loops(code: CodeType, line: int) -> float:
    """Return the last line of the outermost loop of a function around a line; 0 if there is none.

    Infinite if its source cannot be read, but for the interpreter's own part in starting a module.
    """
    if code.co_filename.startswith("<frozen"):
        return 0
    source = "".join(linecache.getlines(code.co_filename))
    try:
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, LOOPS)]
    except (SyntaxError, ValueError):
        return math.inf
    around = [node for node in nodes if code.co_firstlineno <= node.lineno <= line <= (node.end_lineno or 0)]
    return max((node.end_lineno or 0 for node in around), default=0) if source else math.inf
