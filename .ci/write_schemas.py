"""Write what the models of the settings say as JSON Schemas, for editors: into a directory (workflow/schemas)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "workflow/scripts"))

from ddp_ladder.common.files import write_json
from ddp_ladder.common.model import schema_of
from ddp_ladder.settings.keys import Experiment, Site

for name, model in {"config": Experiment, "cluster": Site}.items():
    write_json(Path(sys.argv[1]) / f"{name}.schema.json", schema_of(model))
