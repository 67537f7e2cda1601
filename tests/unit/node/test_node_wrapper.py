"""Wrappers are tried before a run: real programs that are fit, and such as are not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from ddp_ladder.node.launch import Places
from ddp_ladder.node.software import try_wrapper, wrapper_findings, wrappers_of
from ddp_ladder.production.rehearsal import what_is_rehearsed
from make_records import make_spec

NOT_STARTED = "it does not start the training's Python: exit code"


@pytest.mark.parametrize(
    ("words", "severity", "said"),
    [
        (("env", "A=1"), None, ""),
        (("nice", "-n", "1", "--"), None, ""),
        (("no-such-profiler",), "error", "wrapper no-such-profiler: it is not in the PATH"),
        ((sys.executable, "-m", "cProfile", "-o", "{run_dir}/x"), "error", f"{NOT_STARTED} 1; it said: "),
        (("sh", "-c", "echo sorry; exit 5"), "error", f"{NOT_STARTED} 5; it said: sorry"),
        (("sh", "-c", "sleep 60"), "error", "it did not end within 1 s"),
        (("sh", "-c", '"$@"; exit 0', "sh"), "warning", "it ends with 0 where its program ends with 41"),
        (("sh", "-c", '"$@" >{run_dir}/log', "sh"), "warning", "it does not pass on what its program prints"),
    ],
)
def test_a_wrapper_is_tried(tmp_path: Path, words: tuple[str, ...], severity: str | None, said: str) -> None:
    within_s = 1.0 if "sleep 60" in words else 100.0
    trial = try_wrapper(words, make_spec("1x2"), Places(Path.cwd(), tmp_path), os.environ, within_s)
    found = [*wrapper_findings(trial, "node1")]
    assert [each.severity for each in found] == ([severity] if severity else [])
    assert all(said in each.measured for each in found)
    assert [*tmp_path.iterdir()] == []


def test_each_wrapper_of_the_runs_is_tried_once() -> None:
    runs = [make_spec(wrapper_template=words) for words in (("a", "{run_dir}"), (), ("b",), ("a", "{run_dir}"))]
    assert wrappers_of(runs) == (("a", "{run_dir}"), ("b",))


def test_a_rehearsal_is_of_one_wrapper() -> None:
    """A wrapper may keep the warning before the end of a job from the script."""
    one, same, *others = (what_is_rehearsed(make_spec(wrapper_template=words)) for words in ((), (), ("a",), ("b",)))
    assert one == same
    assert one not in others
    assert others[0] != others[1]
