"""Pages that are made from the code when mkdocs builds the site: keys, verdicts, tested versions, variables.

A hook of mkdocs (mkdocs.yml). tests/unit/test_pages.py compares them with the code.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "workflow/scripts"), str(ROOT / ".ci")]

import lock  # noqa: E402
from ddp_ladder.diagnosis.signatures import UNKNOWN, Signature, signatures  # noqa: E402
from ddp_ladder.settings import checks  # noqa: E402
from ddp_ladder.settings.keys import Experiment, Site  # noqa: E402
from ddp_ladder.settings.load import flow, in_words, inside, schema, types_of  # noqa: E402

VERDICTS = tomllib.loads((ROOT / ".ci/verdicts.toml").read_text())  # those that no line of a log makes
OF_CODE = ("run", "check", "chain")  # its tables
SHOWN_VICTIM = "nccl_watchdog"  # the only consequence that is shown as a verdict, of a rank that it aborted


def pages() -> dict[str, str]:
    """Return the Markdown of each page by its file name."""
    return {
        "keys-config.md": keys_page("config.yaml", schema(Experiment)),
        "keys-cluster.md": keys_page("cluster.yaml", schema(Site)),
        "verdicts.md": verdicts_page(),
        "variables.md": variables_page(),
        "tested-versions.md": lock.table((ROOT / "requirements.lock").read_text()),
    }


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to those of docs/."""
    from mkdocs.structure.files import File  # here: the tests of the pages need no mkdocs

    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table, with an empty one behind."""
    lines = [headings, ["---"] * len(headings), *rows]
    return [*(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines), ""]


# Keys of the settings


def keys_page(file: str, part: Mapping[str, Any]) -> str:
    """Return a page with a table of each section of a file."""
    lines = [f"# Every key of {file}", "", "[Configuration](configuration.md) explains how the files are read.", ""]
    return "\n".join([*lines, *_tables("", part)])


def _tables(name: str, part: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a section's own keys, then those of the sections in it. name: empty for the whole file."""
    if rows := [*_rows(name, part)]:
        yield from table(("key", "default", "meaning"), rows)
    for key, inner in part["properties"].items():
        of_any_name = inside(inner, "of any name")
        section = inner if "properties" in inner else of_any_name if "properties" in of_any_name else None
        if section is None:
            continue
        shown = key if section is inner else f"{key}.<name>"
        path = f"{name}.{shown}" if name else shown
        yield from (f"## {path}".replace("<", "&lt;"), "", " ".join(inner.get("description", "").split()), "")
        yield from _tables(path, section)


def _rows(section: str, part: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for key, inner in part["properties"].items():
        if "properties" in inner and "integer" not in types_of(inner):
            continue  # a section, with a table of its own
        default = "required" if key in part.get("required", ()) else f"`{flow(inner.get('default', {}))}`"
        is_short = "enum" in inner or {*types_of(inner)} <= {"integer", "number", "null"}
        words = re.sub(r"^(a whole number from|a number|one of) |, or null$", "", in_words(inner))
        allowed = f" ({words})" if is_short and key != "may_differ" else ""
        meaning = " ".join(inner["description"].split()).rstrip(".")
        yield f"`{section}.{key}`" if section else f"`{key}`", default, f"{meaning}{allowed}"


# Verdicts


def verdicts_page() -> str:
    """Return the page with each verdict that a user can meet, its cause, and what to do."""
    titles = {
        "run": "Why a run failed: how its processes ended",
        "check": "Why a run failed: its processes ended well, and a check did not pass",
        "chain": "Why a chain of jobs stopped",
    }
    lines = [
        "# Every verdict", "",
        "The box of a [closed gate](closed-gate.md) and of a [chain](production.md) names what went wrong in these",
        "words. The box itself is more exact: it has rank, node, time and the lines that show the cause.", "",
        "## Why a run failed: a line of its logs", "",
        *table(("verdict", "cause", "what to do"), _of_signatures(signatures())),
    ]  # fmt: skip
    for kind in OF_CODE:
        rows = [(name, *VERDICTS[kind][name]) for name in sorted(VERDICTS[kind], key=str.casefold)]
        lines += [f"## {titles[kind]}", "", *table(("verdict", "cause", "what to do"), rows)]
    return "\n".join(lines)


def _of_signatures(every: Iterable[Signature]) -> Iterator[Sequence[str]]:
    """Yield a row for each; several causes may have one verdict."""
    for each in sorted(every, key=lambda each: each.verdict.casefold()):
        if each.role != "victim" or each.id == SHOWN_VICTIM:
            yield each.verdict, _in_general(each.why), "; ".join(map(_in_general, each.next))


def _in_general(template: str) -> str:
    """Return a text of signatures.toml without what only a run fills in."""
    known = {**UNKNOWN, "rank": "…", "log": "train.log"}
    words = re.sub(r"(?<!\{)\{(\w+)\}(?!\})", lambda group: str(known.get(group[1], "…")), template)
    return words.replace("{{", "{").replace("}}", "}")


# Variables


def variables_page() -> str:
    """Return the page with the names of variables that libraries read."""
    names = [line for line in checks.FILE.read_text().splitlines() if line and not line.startswith("#")]
    groups: dict[str, list[str]] = {prefix: [] for prefix in (*checks.CLOSED, *checks.OPEN, "Others")}
    for name in names:
        groups[next((prefix for prefix in checks.PREFIXES if name.startswith(prefix)), "Others")].append(f"`{name}`")
    lines = [
        "# Variables that libraries read", "",
        "`snakemake doctor` and every start warn of a variable that no library reads ([my cluster](my-site.md)).",
        "Of NCCL, Gloo, OpenMP and `TORCH_NCCL_...` each name that is not here gets a warning, of the others only one",
        "that is a letter away from a name here. A `*` stands for any rest.", "",
    ]  # fmt: skip
    for prefix, found in groups.items():
        if found:
            lines += [f"## {prefix}", "", " ".join(found), ""]
    return "\n".join(lines)
