"""A link without the instrument (measure.production: off): its exit codes are known, and nothing else."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.assembly.assemble import assemble
from ddp_ladder.common.files import RunDirectory, canonical_sha256
from ddp_ladder.node.launch import INSTRUMENT, Places, processes
from ddp_ladder.plan.plan import chain_plan
from ddp_ladder.platform.launchers import Rendezvous
from ddp_ladder.production.chain import end_of
from ddp_ladder.production.plan import ProductionStage, RehearsalStage
from ddp_ladder.records.raw_files import read_raw_run
from ddp_ladder.run.progress import end_of_link
from ddp_ladder.settings.load import load_settings
from ddp_ladder.settings.terms import Scale
from make_records import make_spec
from make_runs import edit_agent, write_run


def without(tmp_path: Path, **agent: Any) -> RunDirectory:
    directory = write_run(tmp_path, make_spec("1x2", stage="production", instrument=False))
    shutil.rmtree(directory.ranks)
    edit_agent(directory, 0, **agent)
    return directory


def failed(code: int) -> dict[str, Any]:
    rank = {"rank": 1, "local_rank": 1, "pid": 7, "exit_code": code, "ended_at_s": 1.8e9, "signal": None}
    return {"exit_code": 1, "failed_ranks": [rank]}


@pytest.mark.parametrize(
    ("agent", "end", "words"),
    [
        ({}, "complete", "the script ended with exit code 0"),
        (failed(75), "saved", "saved its state (exit code 75)"),
        (failed(3), "failed", "FAILED: "),
    ],
)
def test_the_exit_codes_of_its_ranks_say_how_it_ended(
    tmp_path: Path, agent: dict[str, Any], end: str, words: str
) -> None:
    directory = without(tmp_path, **agent)
    record = assemble(directory)
    assert end_of(record, read_raw_run(directory)) == end
    assert end_of_link(record).startswith(words)


def test_a_link_whose_agent_left_no_record_is_not_complete(tmp_path: Path) -> None:
    directory = without(tmp_path)
    (directory.nodes / "node0.json").unlink()
    assert end_of(assemble(directory), read_raw_run(directory)) == "failed"


def test_only_production_is_without_and_the_hash_of_runs_with_it_is_the_one_of_before() -> None:
    settings = load_settings(Path("config/config.yaml"), Path("config/cluster.yaml"))
    measure = settings.experiment.measure.replace(production="off")
    settings = replace(settings, experiment=settings.experiment.model_copy(update={"measure": measure}))
    specs = {}
    for stage in (ProductionStage, RehearsalStage):
        made = stage(scales=(Scale(1, 2),), runtime=5)
        specs[stage.name] = chain_plan(settings, made, Scale(1, 2), "weak", "results/production").jobs[0].runs[0]
    off, on = specs["production"], specs["rehearsal"]
    assert (off.instrument, on.instrument) == (False, True)
    before = on.model_dump()
    assert (before.pop("instrument"), before.pop("directory_template")) == (True, None)
    assert on.hash == canonical_sha256(before)
    assert off.hash != off.replace(instrument=True).hash
    rendezvous = Rendezvous(id="1", host="node0", port=1)
    commands = [processes(spec, Places(Path("/a"), Path("/a/r")), 0, rendezvous)[0].argv for spec in (off, on)]
    assert [str(INSTRUMENT) in argv for argv in commands] == [False, True]
    assert off.script in commands[0]
