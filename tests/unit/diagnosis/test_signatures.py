"""Every entry of signatures.toml on its samples, which are genuine output, and the order in which lines are judged."""

from __future__ import annotations

import re
import typing

import pytest
from ddp_ladder.diagnosis.signatures import (
    MOST_STEPS,
    ROLES,
    UNKNOWN,
    Match,
    Signature,
    Words,
    classify,
    root_cause,
    signatures,
)
from ddp_ladder.settings.keys import Experiment, Site
from pydantic import BaseModel

ALL = signatures()
SAMPLES = [pytest.param(one, sample, id=f"{one.id}-{n}") for one in ALL for n, sample in enumerate(one.samples)]
SECTIONS = "node|network|software|slurm|stages|workload|measure|preflight"


@pytest.mark.parametrize(("signature", "sample"), SAMPLES)
def test_a_signature_claims_its_samples(signature: Signature, sample: str) -> None:
    found = classify(sample)
    assert found is not None
    assert found.id == signature.id
    needed = next((one.samples[0] for one in ALL if one.id == signature.only_with), "epoch 0")
    others = [Words("rank", 0, "n1", ("epoch 1", needed)), Words("rank", 1, "n2", ("epoch 1", sample, "epoch 2"))]
    named = root_cause(others)
    if signature.role == "victim":
        assert named is None
        return
    assert named is not None
    assert (named.signature.id, named.line, named.words.place) == (signature.id, sample, "rank 1 (n2)")


@pytest.mark.parametrize("signature", ALL, ids=lambda one: one.id)
def test_a_signature_is_complete_and_names_keys_that_exist(signature: Signature) -> None:
    assert signature.role in ROLES
    assert 1 <= len(signature.next) <= MOST_STEPS
    assert signature.samples
    match = Match(
        signature, Words("rank", 3, "n7", signature.samples), 0, dict.fromkeys(signature.regex.groupindex, "x")
    )
    shown = [match.signature.verdict, match.why(), *match.next()]
    assert all(shown)
    assert not any(re.search(r"\{(?!run_dir\}|data_dir\})", text) for text in shown), shown
    assert not any(text.endswith((".", ",", ";")) or len(text) > 140 for text in shown), shown
    assert "NCCL_DEBUG: WARN" not in " ".join(shown), "the default of every run"
    for key in re.findall(rf"\b(?:{SECTIONS})\.[a-z0-9_.<>]+", " ".join(signature.next)):
        assert key.rstrip(".").replace("<stage>", "stage1") in KEYS, key


def keys_of(model: type[BaseModel], prefix: str = "") -> set[str]:
    found = set()
    for name, field in model.model_fields.items():
        found.add(prefix + name)
        for kind in (field.annotation, *typing.get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                found |= keys_of(kind, f"{prefix}{name}.")
    return found


KEYS = keys_of(Experiment) | keys_of(Site)


ROOT = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
SCHED = "srun: error: Node failure on rn2"
SYMPTOM = "DistStoreError: Timed out after 9 seconds waiting for clients. 1/2 clients joined."
VICTIM = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.77.0.2]:60033."


@pytest.mark.parametrize(
    ("lines", "role"),
    [
        ((VICTIM, SYMPTOM, SCHED, ROOT), "root"),
        ((VICTIM, SYMPTOM, SCHED), "sched"),
        ((VICTIM, SYMPTOM), "symptom"),
        ((VICTIM,), None),
    ],
)
def test_a_root_is_named_before_the_scheduler_and_a_victim_never(lines: tuple[str, ...], role: str | None) -> None:
    found = root_cause([Words("rank", number, "n1", (line,)) for number, line in enumerate(lines)])
    assert (found.signature.role if found else None) == role


def test_of_several_roots_the_first_one_is_named() -> None:
    found = root_cause([Words("rank", 1, "n1", (ROOT,)), Words("rank", 0, "n1", ("OSError: [Errno 28] x", ROOT))])
    assert found is not None
    assert (found.words.rank, found.signature.id) == (1, "cuda_oom")


def test_on_one_host_loopback_is_not_the_cause() -> None:
    line = next(one for one in ALL if one.id == "gloo_loopback").samples[0]
    alone = root_cause([Words("rank", 0, "n1", (line,)), Words("rank", 1, "n1", (line,))])
    assert alone is not None
    assert alone.signature.id == "gloo_fullmesh"


@pytest.mark.parametrize(
    "line",
    [
        # huggingface_hub, which then takes the file from its cache
        "'(MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: "
        "/gpt2/resolve/main/config.json\"), '(Request ID: 1)')' thrown while requesting HEAD https://huggingface.co/gpt2",
        # torchvision, which then tries its next mirror
        "<urlopen error [Errno -2] Name or service not known>",
        # torch, which then listens with IPv4
        "[W socket.cpp:401] [c10d] The server socket has failed to listen on [::]:47531 "
        "(errno: 98 - Address already in use).",
        "best loss: inf",
        "srun: Job 42 step creation temporarily disabled, retrying (Requested nodes are busy)",
        "srun: error: node1: task 0: Killed",
    ],
)
def test_words_of_runs_that_go_on_name_no_cause(line: str) -> None:
    found = classify(line)
    assert found is None or found.role not in ("root", "sched")


def test_a_name_that_was_not_resolved_at_first_is_not_the_cause() -> None:
    line = next(one for one in ALL if one.id == "rdzv_name_unresolved").samples[0]
    assert root_cause([Words("rank", 0, "n1", (line, "epoch 1"))]) is None


def test_templates_show_what_the_line_and_the_run_tell() -> None:
    found = root_cause([Words("rank", 0, "n7", ("ModuleNotFoundError: No module named 'timm.data'",))])
    assert found is not None
    assert found.why(python="/venv/bin/python") == "/venv/bin/python has no package timm.data"
    assert found.why() == f"{UNKNOWN['python']} has no package timm.data"
    limit = root_cause([Words("slurm", None, None, ("*** JOB 9 ON rn1 CANCELLED AT 2026 DUE TO TIME LIMIT ***",))])
    assert limit is not None
    assert limit.next(runtime="stages.stage3.runtime")[1].startswith("else raise stages.stage3.runtime")
