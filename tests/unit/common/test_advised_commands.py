"""Every `snakemake ...` that a message names is one that Snakemake takes: its targets are rules, its options exist."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from project_copy import ROOT
from snakemake.cli import get_argument_parser

NAMED = re.compile(r"`snakemake ([^`]*)`|\bsnakemake (\{[\w.]+\}|\{\{|[\w-]+)")
# After the name of the program, in a sentence.
WORDS = frozenset("again command first import once outside yaml".split())
# What stands there instead: a stage, a target of read_to_show, what a user has typed, the options of climb.sh.
FILLED_IN = {"{spec.stage}": "stage1", "{target}": "fit", "{name}": "all", "{{": "--cores 1"}


def piece(part: ast.expr) -> str:
    """Return a part of an f-string; of an expression its source, in braces."""
    return str(part.value) if isinstance(part, ast.Constant) else ast.unparse(part)


def texts() -> Iterator[tuple[Path, str]]:
    """Yield each text of the workflow, with {expressions} where it is filled in."""
    for path in sorted((ROOT / "workflow").rglob("*.py")):
        tree = ast.parse(path.read_text())
        filled = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
        parts = {id(part) for node in filled for part in ast.walk(node) if part is not node}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                pieces = (
                    p.value if isinstance(p, ast.Constant) else f"{{{ast.unparse(p.value)}}}" for p in node.values
                )
                yield path, "".join(map(str, pieces))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                yield path, node.value
    for ending in ("toml", "smk", "j2"):
        yield from ((path, path.read_text()) for path in sorted((ROOT / "workflow").rglob(f"*.{ending}")))


def commands() -> Iterator[tuple[Path, str]]:
    for path, text in texts():
        for quoted, word in NAMED.findall(text):
            command = quoted or word
            if quoted or word not in WORDS:
                yield path, FILLED_IN.get(command, command)


def test_every_command_that_a_message_names_is_one_that_snakemake_takes() -> None:
    rules = "".join(path.read_text() for path in (ROOT / "Snakefile", *(ROOT / "workflow/rules").glob("*.smk")))
    of_files = {"preflight_scale", "search_batch", "gate"}
    targets = {*re.findall(r"(?m)^rule (\w+):", rules)} - of_files
    parser = get_argument_parser()
    found = [*commands()]
    assert len(found) > 40
    for path, command in found:
        words = shlex.split(command.replace("...", "PROFILE"))
        known, unknown = parser.parse_known_args([*words, *(["PROFILE"] if command == "--profile" else [])])
        assert (unknown, {*known.targets} - targets) == ([], set()), f"{path}: snakemake {command}"
