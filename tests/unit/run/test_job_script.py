"""job.sh as text; its template is workflow/templates/job.sh.j2. tests/slurm/test_eject_on_slurm.py submits some.

After an intended change: PYTHONPATH=workflow/scripts:tests python tests/unit/run/test_job_script.py
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ddp_ladder.common.files import TEMPLATES, RunDirectory
from ddp_ladder.common.messages import UserError
from ddp_ladder.node.launch import INSTRUMENT, Places, free_port, node_environment, processes, script_argv
from ddp_ladder.plan.plan import RunSpec, ScaleJob
from ddp_ladder.platform.launchers import TORCHRUN, Rendezvous
from ddp_ladder.run.job_script import job_script, write_job_script
from ddp_ladder.settings.keys import Slurm
from instrument_support import python_named, run_json
from make_files import write_programs
from make_records import make_spec
from read_job_script import exports_in, launch_in

GOLDEN = Path(__file__).parents[1] / "golden"
PROJECT = Path("/home/me/ladder")
PLACES = Places(PROJECT, PROJECT / "results/runs/default/weak/2x4/r1")
HOSTILE = """it's "$HOME" `x` $(y) \\ #1
two"""


def make_job(spec: RunSpec, **changes: Any) -> ScaleJob:
    slurm, gpus = Slurm(account="p1", partition="gpu"), spec.gpus_per_node
    job = ScaleJob(spec.stage, spec.scale, 20, (spec,), 8 * gpus, slurm, memory_mb=64_000, gres=f"gpu:{gpus}")
    return replace(job, **changes)


def text_of(spec: RunSpec, binds: tuple[str, ...] = (), **job: Any) -> str:
    return job_script(make_job(spec, **job), spec, Places(PROJECT, PROJECT / "results/runs" / spec.name), binds)


def spec_of(scale: str, **changes: Any) -> RunSpec:
    return make_spec(scale, **{"device": "cuda", "python": "/opt/torch/bin/python", "threads_per_rank": 8, **changes})


def golden_texts() -> dict[str, str]:
    queue = {"account": "p1", "partition": "gpu,big", "qos": "devel", "reservation": "course"}
    nodes = {"constraint": "a100&ib", "nodelist": "n[1-2]", "exclude": "n3"}
    everything = Slurm(**queue, **nodes, extra=("--exclusive", "--signal=TERM@60"))
    container = {"image": "/images/torch.sif", "engine": "apptainer", "binds": [], "args": ["--cleanenv"]}
    return {
        "torchrun_1x2": text_of(spec_of("1x2"), memory_mb=None),
        "torchrun_2x4": text_of(
            spec_of("2x4", interface="ib0", env={"NCCL_NET": "IB"}, modules=("CUDA/12", "NCCL"), setup="ulimit -l\n"),
            slurm=everything,
        ),
        "srun_container_2x2": text_of(
            spec_of(
                "2x2", launcher="srun", python="python3", container=container, interface="hsn0",
                max_steps=200, max_seconds=90.0,
            ),
            binds=(str(PROJECT), "/data:/d:ro"),
        ),
    }  # fmt: skip


def test_a_line_end_in_an_option_of_sbatch_is_refused() -> None:
    spec = spec_of("1x2")
    with pytest.raises(UserError, match=r'a line end inside an option\n.*"--chdir=/home/a\\nb"'):
        job_script(make_job(spec), spec, Places(project := Path("/home/a\nb"), project / "run"))


def hostile_text() -> str:
    spec = spec_of("1x2", python="/my env/bin/python", args=("--name", HOSTILE), env={"A": HOSTILE})
    project = Path("/home/me/it's #1 50%")
    return job_script(make_job(spec), spec, Places(project, project / "50%/run"))


TEXTS = golden_texts()


@pytest.mark.parametrize("name", TEXTS)
def test_golden(name: str) -> None:
    assert TEXTS[name] == (GOLDEN / f"job_{name}.sh").read_text()


def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    """SC2016: single quotes on purpose, for the trap and in hostile values. SC1090: which file defines `module`."""
    by_node = text_of(spec_of("2x1", interface={"node01": "ens1f1"}, directory="results/runs/default/weak/2x1/r1/work"))
    more = {"edf": text_of(spec_of("2x2", container={"image": "torch", "engine": "edf"}))}
    around = {"wrapper": ("nsys", HOSTILE), "wrapper_template": ("nsys", HOSTILE), "wrapper_per": "node"}
    more["wrapped"] = text_of(spec_of("2x2", launcher="srun", **around))
    for name, text in {**TEXTS, "by_node": by_node, "hostile": hostile_text(), **more}.items():
        (tmp_path / f"{name}.sh").write_text(text)
    shellcheck = Path(sys.executable).with_name("shellcheck")
    files = [*tmp_path.iterdir(), *TEMPLATES.glob("*.sh")]
    command = [shellcheck, "--shell=bash", "--exclude=SC1090,SC2016", "--external-sources", *files]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@pytest.mark.parametrize("node_rank", [0, 1])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"python": None},
        {"python": "venv/bin/python", "directory": "/scratch", "args_template": ("{run_dir}/x", "{start_dir}")},
        {"script": "-m package.train", "args": (HOSTILE,)},
        {"container": {"image": "/a b.sif", "engine": "singularity", "binds": [], "args": ["--env", "A=1"]}},
        {"container": {"image": "torch", "engine": "enroot"}, "numa_binding": "exclusive"},
        {"container": {"image": "torch:1", "engine": "podman-hpc"}, "directory": "work"},
        {"container": {"image": "torch:1", "engine": "shifter"}, "directory": "work"},
        {"container": {"image": "torch", "engine": "edf"}},
        {"wrapper": ("nsys", "profile", HOSTILE, "--"), "numa_binding": "node"},
        {"wrapper": ("nice",), "script": "-m package.train", "container": {"image": "torch", "engine": "enroot"}},
        {"wrapper": ("gssr-record",), "wrapper_per": "node", "container": {"image": "a.sif", "engine": "apptainer"}},
    ],
)
def test_starts_what_the_measured_run_starts_without_the_instrument(changes: dict[str, Any], node_rank: int) -> None:
    spec = spec_of("2x4", **changes, wrapper_template=changes.get("wrapper", ()))
    binds = ("/data",) if spec.container else ()
    variables = {"job_id": "42", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "20042", "SLURM_NODEID": str(node_rank)}
    words = [
        re.sub(r"\$\{(\w+)\}", lambda name: variables[name[1]], word)
        if word.startswith(("--rdzv", "--node-rank", "--master"))
        else word
        for word in launch_in(text_of(spec, binds=binds))
    ]
    meet = Rendezvous("42.default.weak.2x4.r1", "10.0.0.1", 20042)
    (measured,) = processes(spec, PLACES, node_rank, meet, binds)
    ours = (str(INSTRUMENT), str(TORCHRUN), str(RunDirectory(PLACES.run).failed_ranks(node_rank)))
    wanted = " ".join(word for word in measured.argv if word not in ours)
    if spec.wrapper_per == "node" or not spec.wrapper:
        wanted = wanted.replace("-- -m", "-m --")
    assert " ".join(words) == wanted  # -m is torchrun's here, in place of the instrument's


def test_tells_each_process_what_the_measured_run_tells_it() -> None:
    for backend, device, env in (
        ("nccl", "cuda", {"NCCL_NET": "IB", "GLOO_SOCKET_IFNAME": "eth9"}),
        ("gloo", "cpu", {"OMP_NUM_THREADS": "3"}),
    ):
        spec = spec_of("2x2", backend=backend, device=device, env=env, launcher="srun")
        exported = exports_in(text_of(spec))
        measured = node_environment(spec, PLACES, {}, Path("run.json"), "$own_interface", 0.0)
        for name in ("DDP_LADDER_RUN", "DDP_LADDER_LAUNCHED_AT", "NCCL_DEBUG_FILE"):
            measured.pop(name, None)
        if "NCCL_DEBUG" in measured:
            measured["NCCL_DEBUG"] = "${NCCL_DEBUG:-WARN}"
        assert measured.items() <= exported.items()
        own = {name: value for name, value in exported.items() if name not in measured}
        (process, *_) = processes(spec, PLACES, 1, Rendezvous("id", "$own_address", 0), ())
        assert own.keys() == process.env.keys()
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
            assert own[name] == process.env[name]


def run_here(spec: RunSpec, directory: Path, monkeypatch: pytest.MonkeyPatch) -> subprocess.CompletedProcess[str]:
    """Write job.sh into ``directory`` and start it from elsewhere, without Slurm."""
    monkeypatch.chdir(directory)
    written = write_job_script(make_job(spec), spec, RunDirectory(Path("runs") / spec.name))
    assert written.stat().st_mode & 0o111 == 0o111
    argv, no_input = [directory / written, "here"], subprocess.DEVNULL
    return subprocess.run(argv, cwd="/", stdin=no_input, capture_output=True, text=True, check=False, timeout=300)


def stand_in(directory: Path, script: str) -> str:
    """Write a program, whose name has a blank, and return its path."""
    return str(write_programs(directory, **{"my python": script}) / "my python")


def test_hostile_values_arrive_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / 'it\'s a "project" $HOME'
    project.mkdir()
    python = stand_in(project, """printf '%s\\n' "$PWD" "$A" "$@" >"seen.$RANK\"""")
    workload = {"script": "train me.py", "args": (HOSTILE, "", "*"), "env": {"A": HOSTILE}}
    spec = make_spec("1x2", launcher="srun", python=python, **workload)
    done = run_here(spec, project, monkeypatch)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        seen = (project / f"seen.{rank}").read_text()
        assert seen == "\n".join([str(project), HOSTILE, *script_argv(spec, PLACES)]) + "\n"


@pytest.mark.parametrize(("per", "wrapped"), [("rank", {"0", "1"}), ("node", {"0"})])
def test_a_wrapper_of_srun_starts_each_rank_or_the_first_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, per: str, wrapped: set[str]
) -> None:
    """Each start of job.sh has a directory of its own for what the wrapper writes."""
    python = stand_in(tmp_path, 'echo "$RANK $WRAPPED"')
    words = ("sh", "-c", 'WRAPPED=yes exec "$@" | tee {run_dir}/"$RANK"', "sh")
    spec = make_spec("1x2", launcher="srun", python=python, wrapper=words, wrapper_template=words, wrapper_per=per)
    done = run_here(spec, tmp_path, monkeypatch)
    assert done.returncode == 0, done.stderr
    assert {*done.stdout.splitlines()} == {f"{rank} {'yes' * (rank in wrapped)}" for rank in ("0", "1")}
    (files,) = (tmp_path / "runs" / spec.name).glob("wrapper-*")
    assert {file.name for file in files.iterdir()} == wrapped


SHORT_FOR_TORCHRUNS = ("--logs", "x", "--local", "--n", "3", "-m", "--", "--help")


@pytest.mark.parametrize(
    ("torch", "script", "wrapper"),
    [("newest", "seen.py", ()), ("oldest", "-m seen", ()), ("oldest", "-m seen", ("nice", "-n", "1", "--"))],
)
def test_arguments_that_torchrun_could_take_for_its_own_arrive(
    torch: str, script: str, wrapper: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "seen.py").write_text("import sys\nprint('seen', *sys.argv[1:])\n")
    around = {"wrapper": wrapper, "wrapper_template": wrapper}
    spec = make_spec(python=str(python_named(torch)), script=script, args=SHORT_FOR_TORCHRUNS, **around)
    of_script = run_here(spec, tmp_path, monkeypatch)
    (process,) = processes(spec, Places.here(tmp_path / "run"), 0, Rendezvous("id", "127.0.0.1", free_port("seen")))
    (tmp_path / "run/nodes").mkdir(parents=True)
    env = {**os.environ, "DDP_LADDER_RUN": str(run_json(tmp_path / "run"))}
    measured = subprocess.run(process.argv, env=env, capture_output=True, text=True, check=False, timeout=300)
    for done in (of_script, measured):
        assert f"seen {' '.join(SHORT_FOR_TORCHRUNS)}\n" in done.stdout, done.stderr


def test_without_slurm_ranks_of_srun_get_its_variables_and_one_that_fails_fails_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "echo $SLURM_PROCID of $SLURM_NTASKS on $SLURM_JOB_NODELIST in $SLURM_JOB_ID"
    python = stand_in(tmp_path, f'{told}\n[ "$LOCAL_RANK" = 0 ] || exit 3')
    done = run_here(make_spec("1x2", launcher="srun", python=python), tmp_path, monkeypatch)
    first, second = sorted(done.stdout.splitlines())
    assert re.fullmatch(rf"0 of 2 on {re.escape(socket.gethostname())} in 1[0-9]{{8}}", first)
    assert (second, done.returncode) == (f"1{first[1:]}", 3)


@pytest.mark.parametrize(
    ("names", "code", "said"),
    [
        (["*** Maintenance", "on Monday ***", "node1", "localhost", "bye"], 0, "127.0.0.1\n"),
        (["Maintenance", "node1"], 1, "scontrol shows no other node with an IPv4 address: Maintenance\nnode1\n"),
    ],
)
def test_a_notice_among_the_names_of_nodes_misleads_nobody(
    names: list[str], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """scontrol is a stand-in; names are looked up by the real getent."""
    write_programs(tmp_path, scontrol="printf '%s\\n' " + " ".join(f"'{name}'" for name in names))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SLURMD_NODENAME", "node1")
    text = text_of(make_spec("2x1"))
    part = text[text.index("fail() {") : text.index("# The interface of the node that runs this")]
    script = f'set -e\n{part}echo "$second_address"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr.partition(": ")[2]) == (code, said)


def test_a_setup_holds_for_the_training_and_one_that_fails_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = stand_in(tmp_path, 'echo "$A $B $OMP_NUM_THREADS ${MKL_NUM_THREADS-unset} ${PYTHONPATH-unset}"')
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("MKL_NUM_THREADS", "64")
    setup = "cat >file <<'END'\nin a file\nEND\nexport A=\"$(cat file)\" OMP_NUM_THREADS=7\nexport B=site \\"
    spec = make_spec(setup=setup, python=python, env={"B": "user"}, launcher="srun")
    assert run_here(spec, tmp_path, monkeypatch).stdout == "in a file user 1 unset unset\n"
    done = run_here(spec.replace(setup="false\necho not here \\"), tmp_path, monkeypatch)
    assert (done.returncode, done.stdout) == (1, "")


if __name__ == "__main__":
    for golden, content in TEXTS.items():
        (GOLDEN / f"job_{golden}.sh").write_text(content)
