"""Write what the models of the settings say: JSON Schemas for editors, and the tables of docs/."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddp_ladder.common.command import command, parser_of
from ddp_ladder.common.files import OWN, SCHEMAS, write_atomically, write_json
from ddp_ladder.common.model import Model, schema_of
from ddp_ladder.settings.keys import Experiment, Site
from ddp_ladder.settings.load import flow, in_words, inside, schema, types_of

MODELS: Mapping[str, type[Model]] = {"config": Experiment, "cluster": Site}
PAGES = sorted((OWN / "docs").glob("*.md"))
_TABLE = re.compile(r"(<!-- keys of (\w+):? ?(.*?) -->\n)(?:\n\|[^\n]*)*\n*")


def with_tables(text: str) -> str:
    """Return the text of a page with a table of keys below each ``<!-- keys of MODEL: SECTION, ... -->``."""
    models = {model.__name__: model for model in MODELS.values()}

    def table(marker: re.Match[str]) -> str:
        rows = [row for section in marker[3].split(",") for row in _rows(schema(models[marker[2]]), section.strip())]
        return "\n".join([marker[1], "| key | default | meaning |", "| --- | --- | --- |", *rows, "", ""])

    return _TABLE.sub(table, text).rstrip("\n") + "\n"


def _rows(part: Mapping[str, Any], section: str) -> Iterator[str]:
    """Yield a row for each key of a section that holds values itself."""
    for name in section.split(".") if section else ():
        part = part["properties"][name]
    part = part if "properties" in part else inside(part, "of any name")
    for key, inner in part["properties"].items():
        if "properties" in inner and "integer" not in types_of(inner):
            continue  # a section, with a table of its own
        shown = f"{section}.{key}" if section else key
        default = "required" if key in part.get("required", ()) else f"`{flow(inner.get('default', {}))}`"
        is_short = "enum" in inner or {*types_of(inner)} <= {"integer", "number", "null"}
        words = re.sub(r"^(a whole number from|a number|one of) |, or null$", "", in_words(inner))
        allowed = f" ({words})" if is_short and key != "may_differ" else ""
        yield f"| `{shown}` | {default} | {inner['description'].rstrip('.')}{allowed} |"


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write both schemas, and the tables."""
    parser_of(__doc__, "write_schemas.py").parse_args(argv)
    for name, model in MODELS.items():
        write_json(SCHEMAS / f"{name}.schema.json", schema_of(model))
    for page in PAGES:
        write_atomically(page, with_tables(page.read_text()))
    print(f"written: {len(MODELS)} schemas in {SCHEMAS}, tables of {OWN / 'docs'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
