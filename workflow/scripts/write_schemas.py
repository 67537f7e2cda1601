"""Write what the models of the settings say as JSON Schemas, for editors."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping

from ddp_ladder.common.command import command
from ddp_ladder.common.files import SCHEMAS, write_json
from ddp_ladder.common.model import Model, schema_of
from ddp_ladder.settings.keys import Experiment, Site

MODELS: Mapping[str, type[Model]] = {"config": Experiment, "cluster": Site}


@command("write_schemas.py")
def main(arguments: Namespace) -> int:
    """Write both schemas."""
    for name, model in MODELS.items():
        write_json(SCHEMAS / f"{name}.schema.json", schema_of(model))
    print(f"written: {len(MODELS)} schemas in {SCHEMAS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
