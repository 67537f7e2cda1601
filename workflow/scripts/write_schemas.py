"""Write what the models of the settings say as JSON Schemas, for editors."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from ddp_ladder.common.command import command, parser_of
from ddp_ladder.common.files import SCHEMAS, write_json
from ddp_ladder.common.model import Model, schema_of
from ddp_ladder.settings.keys import Experiment, Site

MODELS: Mapping[str, type[Model]] = {"config": Experiment, "cluster": Site}


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write both schemas."""
    parser_of(__doc__, "write_schemas.py").parse_args(argv)
    for name, model in MODELS.items():
        write_json(SCHEMAS / f"{name}.schema.json", schema_of(model))
    print(f"written: {len(MODELS)} schemas in {SCHEMAS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
