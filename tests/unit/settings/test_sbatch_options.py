from __future__ import annotations

import pytest
from ddp_ladder.settings.sbatch_options import objection

SLURM = "remove it and set slurm.{} instead"
RUNTIME = "remove it and set the stage's runtime in config.yaml instead"
ENVIRONMENT = "remove it and set network.env, or workload.env in config.yaml, instead"


def advice(item: str) -> str:
    found = objection(item)
    assert found is not None, item
    return found.next


@pytest.mark.parametrize(
    "item",
    ["--exclusive", "--exclusive=user", "--hint=nomultithread", "--signal=TERM@120", "--signal=USR1@60", "--hold", "-H",
     "--mail-user=me@site.org", "--mail-type=END,FAIL", "--gres-flags=enforce-binding", "--mem-bind=local",
     "--gpu-freq=high", "--nice=10", "--switches=1@00:30:00", "--licenses=a:2", "--dependency=singleton",
     "--use-min-nodes", "--contiguous", "--overcommit", "--tmp=100G", "--prefer=a[1-2]", "--network=x",
     "--begin=now+1hour",
     "--no-kill", "--core-spec=0", "--distribution=block:block", "-Lx:1"],
)  # fmt: skip
def test_options_that_nothing_else_stands_for(item: str) -> None:
    assert objection(item) is None


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (["--account=a", "-A", "-Aa", "-A a", "--account a"], SLURM.format("account")),
        (["--partition=gpu", "-p gpu", "-pgpu"], SLURM.format("partition")),
        (["--qos=x", "-q x"], SLURM.format("qos")),
        (["--constraint=a", "-C a"], SLURM.format("constraint")),
        (["--reservation=a"], SLURM.format("reservation")),
        (["--nodelist=a", "-w a", "--nodefile=f", "-F f"], SLURM.format("nodelist")),
        (["--exclude=a", "-x a"], SLURM.format("exclude")),
        (["--gres=gpu:4", "--gres gpu:4"], "remove it and set node.gres instead"),
        (["--cpus-per-task=4", "-c 4", "-c4", "--cpus-per-gpu=8"], "remove it and set node.cpus instead"),
        (["--mem=4G", "--mem-per-cpu=1G", "--mem-per-gpu=1G"], "remove it and set node.memory_mb instead"),
        (["--time=10", "-t 10", "-t10", "--time-min=1"], RUNTIME),
        (["--export=ALL", "--export=NONE", "--export-file=f"], ENVIRONMENT),
    ],
)  # fmt: skip
def test_options_that_have_a_key(items: list[str], expected: str) -> None:
    assert [advice(item) for item in items] == [expected] * len(items)


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (["--nodes=2", "-N 2", "-N2"], "the scale decides"),
        (["--gpus=4", "-G 4", "--gpus-per-node=4", "--gpus-per-task=1"], "the scale decides"),
        (["--ntasks=2", "-n 2", "-n2", "--ntasks-per-node=1", "--ntasks-per-gpu=1"], "one task per node"),
        (["--output=x", "-o x", "--error=x", "-e x"], "results/logs"),
        (["--job-name=x", "-J x", "-Jx", "--comment=x", "--parsable"], "finds its jobs by it"),
        (["--clusters=x", "-M x"], "login node of that cluster"),
        (["--chdir=/x", "-D /x"], "directory where Snakemake works"),
        (["--array=1-2", "-a 1"], "the same files"),
        (["--wait", "-W"], "Snakemake waits"),
        (["--wrap=x"], "gives sbatch its script"),
        (["--test-only"], "would never run"),
        (["--requeue", "--no-requeue"], "started again"),
    ],
)  # fmt: skip
def test_options_that_ddp_ladder_decides(items: list[str], words: str) -> None:
    for item in items:
        assert words in advice(item), item


@pytest.mark.parametrize("item", ["--part=gpu", "--acc=a", "--gre=gpu:1", "--cpus-per-t=4", "--n=4"])
def test_the_beginning_of_a_name_is_enough_for_sbatch_and_so_here(item: str) -> None:
    assert advice(item).startswith("remove it")


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("exclusive", "write --exclusive"), ("hint=nomultithread", "write --hint=nomultithread"),
        ("a b", "start it with --"), ("-", "start it with --"), ("--", "start it with --"),
        ("---x", "start it with --"),
        ("$(id)", "start it with --"), (" --exclusive", "start it with --"), ("-1", "start it with --"),
        ("--exclusive --hold", "one list item per option, its value after =, without quotes"),
        ("größe", "start it with --"),
    ],
)  # fmt: skip
def test_what_is_no_option(item: str, expected: str) -> None:
    assert advice(item) == expected


@pytest.mark.parametrize("char", list(" \t\n;&|<>()$`\\\"'*?~#!{}^\0ö"))
def test_characters_that_a_shell_would_change(char: str) -> None:
    for item in (f"--prefer=a{char}b", f"--prefer{char}b", f"--exclusive{char}"):
        assert objection(item) is not None, item


def test_a_space_in_place_of_an_equals_sign() -> None:
    found = objection("--signal USR1@60")
    assert found is not None
    assert (found.what, found.next) == ("a space in an option", "write --signal=USR1@60")


@pytest.mark.parametrize("item", ["--signal=B:TERM@60", "--signal=B", "--signal=RB:15", "--signal B:TERM@60"])
def test_a_signal_to_the_batch_shell(item: str) -> None:
    found = objection(item)
    assert found is not None
    assert (found.what, found.next) == ("a signal to the batch shell, which would end the job at once", "leave out B:")
