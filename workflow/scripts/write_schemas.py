"""Write workflow/schemas/<name>.schema.json: the JSON Schema of each model of a file, for editors and programs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from ddp_ladder.accounting.job_file import JobFile
from ddp_ladder.accounting.row import JobRow
from ddp_ladder.analysis.forecast_file import Forecast
from ddp_ladder.common.command import command
from ddp_ladder.common.files import write_json
from ddp_ladder.common.model import Model, schema_of
from ddp_ladder.common.paths import SCHEMAS
from ddp_ladder.gates.file import Verdict
from ddp_ladder.machine.model import Machine
from ddp_ladder.monitor.models import MonitorFile
from ddp_ladder.preflight.result import PreflightResult
from ddp_ladder.records.raw_models import AgentEnd, RankEnd, RunEnd, RunFile
from ddp_ladder.records.record import Record
from ddp_ladder.settings.cluster_keys import ClusterKeys
from ddp_ladder.settings.config_keys import ConfigKeys

MODELS: Mapping[str, type[Model]] = {
    "config": ConfigKeys,
    "cluster": ClusterKeys,
    "run": RunFile,
    "ended": RunEnd,
    "node": AgentEnd,
    "monitor": MonitorFile,
    "rank": RankEnd,
    "record": Record,
    "gate": Verdict,
    "preflight": PreflightResult,
    "machine": Machine,
    "job": JobFile,
    "accounting": JobRow,
    "forecast": Forecast,
}


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write all schemas."""
    example = "example: python workflow/scripts/write_schemas.py"
    argparse.ArgumentParser(description=__doc__, epilog=example).parse_args(argv)
    for name, model in MODELS.items():
        write_json(SCHEMAS / f"{name}.schema.json", schema_of(model))
    print(f"written: {len(MODELS)} schemas in {SCHEMAS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
