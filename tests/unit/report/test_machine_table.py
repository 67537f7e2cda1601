"""The report's table of the nodes: from a captured H100 node, and changes of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from html import unescape
from pathlib import Path

from ddp_ladder.machine.model import Machine
from ddp_ladder.report.machine_table import machine_rows
from ddp_ladder.report.page import write_report
from ddp_ladder.report.results import LadderResults
from make_machine import make_affinity, make_machine
from make_records import make_plan_of, make_record, make_specs, records_by_name

HOSTILE = "<script>alert('x')</script>|`$\\"


def rows(**scales: list[Machine]) -> dict[str, tuple[tuple[str, str], ...]]:
    return {row.name: row.values for row in machine_rows({name.lstrip("s"): nodes for name, nodes in scales.items()})}


def test_captured_node() -> None:
    shown = {name: value for name, ((value, _),) in rows(s1x1=[make_machine()]).items()}
    assert shown == {
        "processors": "2 x Intel(R) Xeon(R) Platinum 8468, 48 cores each",
        "NUMA nodes": "2: 0 with CPUs 0-47, 503 GiB; 1 with CPUs 48-95, 503 GiB",
        "memory": "1007 GiB",
        "GPUs": "1 x NVIDIA H100 80GB HBM3 (80 GiB, 700 W, PCIe 5 x16, ECC enabled)",
        "GPU links": "to a GPU: 7 x NV18; to a network adapter: 4 x NODE, 2 x PIX",
        "NUMA nodes of the GPUs": "GPU 0 at 0",
        "driver": "545.23.08, for CUDA up to 12.3",
        "interface": "ib0, 400 Gbit/s, MTU 2044",
        "system": "Rocky Linux 9.4 (Blue Onyx), kernel 5.14.0-427.el9.x86_64",
        "CPUs of the job step": "0-15",
        "CPUs of the ranks": "every rank all of the job step's",
    }


def test_only_what_differs_has_its_place() -> None:
    one, two = make_machine("2x1"), make_machine("2x1", "node2", driver="550.54.15")
    shown = rows(s1x1=[make_machine()], s2x1=[one, two])
    assert shown["memory"] == (("1007 GiB", ""),)
    assert shown["driver"] == (
        ("545.23.08, for CUDA up to 12.3", "1x1, 2x1 on node1"),
        ("550.54.15, for CUDA up to 12.3", "2x1 on node2"),
    )


def test_ranks_that_are_bound_to_cpus_of_their_own() -> None:
    ranks = (make_affinity(4, "0-7"), make_affinity(5, "8-15", "3", "8"))
    (text,) = rows(s2x4=[make_machine("2x4", ranks=ranks)])["CPUs of the ranks"]
    assert text == ("local rank 0 0-7, local rank 1 8-15; 2 threads bound elsewhere, all within 0-15", "")


def test_what_could_not_be_asked_is_shown_and_nothing_is_made_up() -> None:
    bare = make_machine(
        cpu=None, memory_bytes=None, numa_nodes=(), driver=None, cuda=None, gpus=(), ranks=(), notes=("lscpu: no",)
    )
    shown = rows(s1x1=[bare])
    assert sorted(shown) == ["CPUs of the job step", "interface", "not known", "system"]
    assert shown["not known"] == (("lscpu: no", ""),)
    assert machine_rows({}) == ()


def test_it_is_on_the_page_and_in_the_text(tmp_path: Path) -> None:
    specs = make_specs(["1x1", "1x2"])
    results = LadderResults(make_plan_of(specs), records_by_name([make_record(spec) for spec in specs]), {}, ())
    described = replace(results, machines={"1x1": [make_machine(os=HOSTILE)]})
    for found, is_there in ((described, True), (results, False)):
        write_report(tmp_path, found, date(2026, 11, 20))
        page = (tmp_path / "report/index.html").read_text()
        text = (tmp_path / "report/scaling.md").read_text()
        assert (">The machine</h2>" in page) == ("## The machine" in text) == is_there
        assert HOSTILE not in page
        assert (HOSTILE in unescape(page)) == is_there
