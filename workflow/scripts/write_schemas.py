"""Write the JSON Schemas of config.yaml and cluster.yaml, workflow/schemas/<name>.schema.json: editors use them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from ddp_ladder.common.command import command
from ddp_ladder.common.files import write_json
from ddp_ladder.common.model import Model, schema_of
from ddp_ladder.common.paths import SCHEMAS
from ddp_ladder.settings.keys import Experiment, Site

MODELS: Mapping[str, type[Model]] = {"config": Experiment, "cluster": Site}


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write both schemas."""
    example = "example: python workflow/scripts/write_schemas.py"
    argparse.ArgumentParser(description=__doc__, epilog=example).parse_args(argv)
    for name, model in MODELS.items():
        write_json(SCHEMAS / f"{name}.schema.json", schema_of(model))
    print(f"written: {len(MODELS)} schemas in {SCHEMAS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
