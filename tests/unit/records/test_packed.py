"""Raw files as the ranks write them, and packed by their agents: the same figures, from fewer files."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from ddp_ladder.assembly.assemble import assemble
from ddp_ladder.assembly.run_records import write_tables
from ddp_ladder.common.files import NotWritten, RunDirectory
from ddp_ladder.records import packed
from ddp_ladder.records.packed import pack
from ddp_ladder.records.raw_files import read_raw_run
from ddp_ladder.records.raw_models import read_run_file
from ddp_ladder.records.record import Record
from ddp_ladder.records.steps import csv_of
from make_records import make_spec
from make_runs import edit, failure_of, write_run
from make_sampled_runs import sample_nodes


def pack_all(directory: RunDirectory) -> None:
    run = read_run_file(directory)
    for agent in run.all_agents:
        digest = pack(directory, agent, run.ranks_of(agent))
        edit(directory.agent_end(agent), lambda end, digest=digest: end.update(packed=digest))


def without_files(record: Record) -> Record:
    return record.replace(files={})


def sampled_run(results: Path, agents_per_node: int) -> RunDirectory:
    launcher = "srun" if agents_per_node > 1 else "torchrun"
    directory = write_run(results, make_spec("2x2", launcher=launcher), agents_per_node=agents_per_node)
    sample_nodes(directory)
    return directory


@pytest.mark.parametrize("agents_per_node", [1, 2])
def test_packed_files_give_the_same_record_and_tables(tmp_path: Path, agents_per_node: int) -> None:
    directory = sampled_run(tmp_path, agents_per_node)
    before, raw = assemble(directory), read_raw_run(directory)
    samples = directory.samples(1).read_bytes()
    pack_all(directory)
    assert not [*directory.ranks.iterdir()]
    assert without_files(assemble(directory)) == without_files(before)
    assert before.usage
    write_tables(read_raw_run(directory))
    assert directory.samples(1).read_bytes() == samples
    assert (directory.ranks / "rank3.csv").read_text() == csv_of(raw.ranks[3].steps)


def test_after_an_interruption_the_files_stay_and_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = sampled_run(tmp_path, 1)
    before, run = assemble(directory), read_run_file(directory)
    first, second = run.all_agents
    pack(directory, first, run.ranks_of(first))

    def full(path: Path) -> None:
        raise NotWritten(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(packed, "written_atomically", full)
    pack(directory, second, run.ranks_of(second))
    record = assemble(directory)
    assert without_files(record) == without_files(before)
    assert {name for name in record.files if "rank" in name} == {
        f"ranks/rank{k}.{kind}" for k in (2, 3) for kind in ("json", "steps")
    }


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    directory = sampled_run(tmp_path, 1)
    pack_all(directory)
    archive = directory.packed(read_run_file(directory).all_agents[1])
    archive.write_bytes(archive.read_bytes()[:-30])
    assemble_again = failure_of(directory)
    assert "node1.zip" in assemble_again.why
