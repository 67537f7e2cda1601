"""Steps that a program without torch writes down itself, in Python and in other languages."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from ddp_ladder_instrument import progress
from instrument_support import run, script

WRITES = """
    import json, os
    with open(os.environ["DDP_LADDER_METRICS"], "a") as file:
        for step in range(4):
            print(json.dumps({"samples": 8 + step, "seconds": 0.25, "wait_seconds": 0.05}), file=file, flush=True)
"""
SHELL = """
    #!/bin/sh
    echo "rank $RANK got $*"
    echo '{"samples": 3, "seconds": 0.5}' >> "$DDP_LADDER_METRICS"
    exit 4
"""


def test_steps_of_a_program_without_torch(tmp_path: Path) -> None:
    done = run(tmp_path, script(tmp_path, WRITES), env={"RANK": "1", "WORLD_SIZE": "2"})
    assert done.code == 0, done.err
    record = done.rank(1)
    assert (record["source"], record["steps"]["count"], record["world_size"]) == ("metrics", 4, 2)
    assert [row["samples"] for row in done.rows(1)] == [8, 9, 10, 11]
    assert {(row["step_time_s"], row["data_wait_s"]) for row in done.rows(1)} == {(0.25, 0.05)}


def test_program_in_another_language(tmp_path: Path) -> None:
    program = script(tmp_path, SHELL, "train")
    program.chmod(0o755)
    done = run(tmp_path, program, "a b", env={"RANK": "0"})
    assert (done.code, done.out) == (4, "rank 0 got a b\n")
    record = done.rank()
    assert (record["source"], record["exit_code"]) == ("metrics", 4)
    assert [row["samples"] for row in done.rows()] == [3]


def test_program_that_a_signal_ends(tmp_path: Path) -> None:
    program = script(tmp_path, "#!/bin/sh\nkill -TERM $$\n", "train")
    program.chmod(0o755)
    assert run(tmp_path, program).code == 128 + signal.SIGTERM


@pytest.mark.parametrize(("loader", "found"), [("DataLoader", ("counted", 3, 1)), ("list", ("metrics", 4, 8))])
def test_what_torch_shows_is_better_if_it_shows_the_samples(
    tmp_path: Path, loader: str, found: tuple[str, int, int]
) -> None:
    """Without them, as with torchdata.nodes, the gate advises to write them."""
    text = f"""
    import torch
    from torch.utils.data import DataLoader
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for x in {loader}(torch.ones(3)):
        (parameter * x).sum().backward()
        optimizer.step()
"""
    done = run(tmp_path, script(tmp_path, text + WRITES))
    assert (done.rank()["source"], done.rank()["steps"]["count"], done.rows()[0]["samples"]) == found


@pytest.mark.parametrize(
    "line",
    ["{", "{}", '{"samples": 1, "seconds": 0}', '{"samples": 1.5, "seconds": 1}', '{"samples": -1, "seconds": 1}',
     '{"samples": 1, "seconds": NaN}', '{"samples": 1, "seconds": 1, "wait_seconds": 2}'],
)  # fmt: skip
def test_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "metrics0.jsonl"
    file.write_text(f'{{"samples": 1, "seconds": 1}}\n\n{line}\n')
    with pytest.raises(ValueError, match="line 3 of DDP_LADDER_METRICS"):
        progress.read_metrics(file)


def test_damaged_file_is_not_measured(tmp_path: Path) -> None:
    text = 'import os; open(os.environ["DDP_LADDER_METRICS"], "w").write("nonsense")'
    record = run(tmp_path, script(tmp_path, text)).rank()
    assert (record["source"], record["steps"]["count"]) == ("none", 0)
    assert "line 1 of DDP_LADDER_METRICS" in record["not_measured"][0]
