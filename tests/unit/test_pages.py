"""Pages that are made from the code: every key, and every verdict that a user can meet and no other."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

from ddp_ladder.common.model import schema_of
from ddp_ladder.diagnosis.rank_failures import signal_advice
from ddp_ladder.diagnosis.signatures import signatures
from ddp_ladder.settings.keys import Experiment, Site
from ddp_ladder.settings.terms import PLACEHOLDERS

ROOT = Path(__file__).parents[2]
PAGES = runpy.run_path(str(ROOT / ".ci/pages.py"))
MADE = PAGES["pages"]()
CODE = ROOT / "workflow/scripts/ddp_ladder"
MAKERS = ("diagnosis", "assembly", "run", "production", "climb")
SIGNALS = ("SIGTERM", "SIGKILL", "SIGBUS", "SIGABRT", "SIGSEGV")


def test_every_key_has_a_row() -> None:
    for name, model in (("keys-config.md", Experiment), ("keys-cluster.md", Site)):
        described = schema_of(model)
        keys = {key for part in (described, *described["$defs"].values()) for key in part.get("properties", ())}
        rows = set(re.findall(r"^(?:\| `|## )(?:[\w.<>&;]+\.)?(\w+)(?:`|$)", MADE[name], re.MULTILINE))
        assert keys - rows == set()
    placeholders = (ROOT / "docs/configuration.md").read_text()
    assert [name for name in PLACEHOLDERS if f"`{{{name}}}`" not in placeholders] == []


def test_every_verdict_that_can_be_met_is_on_the_page_and_no_other() -> None:
    told = {name for kind in PAGES["OF_CODE"] for name in PAGES["VERDICTS"][kind]}
    met = {verdict for package in MAKERS for file in sorted((CODE / package).glob("*.py")) for verdict in of_file(file)}
    met |= {signal_advice(signal, "n1")[0] for signal in SIGNALS}
    assert told - met == set(), "no code makes these"
    assert met - told == set(), "not in .ci/verdicts.toml"
    page = MADE["verdicts.md"]
    of_logs = {one.verdict for one in signatures() if one.role != "victim"}
    assert [name for name in {*told, *of_logs} if f"\n| {name} | " not in page] == []


def of_file(file: Path) -> Iterator[str]:
    """Yield the verdicts that a module composes; an f-string with … in place of its values."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            of_key = [word.value for word in node.keywords if word.arg == "verdict"]
            if name in ("Failure", "replace"):
                for value in of_key:
                    yield from texts(value)
            elif name == "not_run":
                yield from (text for value in node.args[4:] for text in texts(value))
            elif name == "diagnose" and not (
                isinstance(node.args[1], ast.Constant) and node.args[1].value is not False
            ):
                given = node.args[4:5] or of_key
                if not given or any("" in [*texts(value)] for value in given):
                    yield from named(node.args[0], tree)  # a check without a verdict gives its own name
                yield from (text for value in given for text in texts(value) if text)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from assigned(target, node.value)
        elif isinstance(node, ast.FunctionDef):
            with_default = zip(reversed(node.args.args), reversed(node.args.defaults), strict=False)
            yield from (t for arg, value in with_default if arg.arg == "verdict" for t in texts(value) if t)
            yield from of_steps(node)
            if node.name == "_verdict":
                returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
                yield from (t for each in returned if isinstance(each, ast.Tuple) for t in texts(each.elts[0]))


def of_steps(function: ast.FunctionDef) -> Iterator[str]:
    """Yield the verdicts with which a chain is over; one may be a variable of the function."""
    inner = [*ast.walk(function)]
    values = [each for each in inner if isinstance(each, ast.Assign)]
    for call in inner:
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "over":
            verdict = call.args[1]
            if isinstance(verdict, ast.Name):
                names = [each.value for each in values if ast.unparse(each.targets[0]) == verdict.id]
                yield from (text for value in names for text in texts(value))
            yield from texts(verdict)


def assigned(target: ast.expr, value: ast.expr | None) -> Iterator[str]:
    """Yield the texts of a variable ``verdict``, or of a constant that is one, such as OWN_PORT."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, of_one in zip(target.elts, value.elts, strict=False):
            yield from assigned(one, of_one)
    elif isinstance(target, ast.Name) and target.id in ("verdict", "OWN_PORT") and value is not None:
        yield from texts(value)


def texts(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.JoinedStr):
        alternatives = [""]
        for part in value.values:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            alternatives = [a + b for a in alternatives for b in ([*texts(inner)] or ["…"])]
        yield from alternatives
    elif isinstance(value, ast.IfExp):
        yield from (*texts(value.body), *texts(value.orelse))


def named(value: ast.expr, tree: ast.Module) -> Iterator[str]:
    """Yield the name of a check, also of a constant of its module."""
    import ddp_ladder.diagnosis.correctness as names

    yield from [getattr(names, value.id)] if isinstance(value, ast.Name) else texts(value)
