"""What the picture of a run shows: its panels, lines, bands and limits, and that its pauses are named in it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ddp_ladder.nodes.read import NodeSamples, Span
from ddp_ladder.report.svg import Drawing
from ddp_ladder.report.traces import Dip, dips
from ddp_ladder.report.usage_panels import BINS, MOST_LINES, Panel, gpu_traces, panels
from ddp_ladder.report.usage_plot import run_figure
from make_course import make_nodes
from make_usage import BEGIN_S, make_monitor_file, make_samples, make_timeline

WITH_GPU = ["busy", "memory_busy", "power", "temperature", "active", "cpu", "network", "memory"]
WITHOUT_GPU = ["cpu", "network", "memory"]
PAUSES = [(60.0, 80.0, 0.1), (100.0, 102.0, 0.3)]


def by_key(nodes: list[NodeSamples]) -> dict[str, Panel]:
    return {panel.key: panel for panel in panels(nodes)}


def node(gpu_count: int = 0, about: dict[str, Any] | None = None, **values: Any) -> NodeSamples:
    return make_samples(make_monitor_file(0, gpu_count, **(about or {})), 60, **values)


def test_panels_from_the_top() -> None:
    assert list(by_key(make_nodes(1, 1, 120))) == WITH_GPU
    assert list(by_key(make_nodes(2, 4, 120))) == [*WITH_GPU[:-1], "fabric", "memory"]


def test_without_a_gpu_there_is_no_panel_of_one() -> None:
    assert list(by_key(make_nodes(1, 0, 120))) == WITHOUT_GPU
    assert by_key([]) == {}


def test_a_counter_that_the_gpu_lacks_has_no_panel() -> None:
    assert "active" not in by_key([node(gpu_count=1)])  # its GPM cells are empty


def test_a_line_for_each_gpu_and_a_band_where_there_are_many() -> None:
    few, many = by_key(make_nodes(2, 4, 120)), by_key(make_nodes(3, 4, 120))
    assert [line.label for line in few["busy"].lines][:5] == [*(f"node0 GPU {k}" for k in range(4)), "node1 GPU 0"]
    assert len(few["busy"].lines) == MOST_LINES == 8
    assert not few["busy"].bands
    assert not many["busy"].lines
    assert [(band.label, band.traces) for band in many["busy"].bands] == [("GPUs", 12)]
    assert [band.label for band in few["active"].bands] == ["SMs", "tensor cores", "DRAM"]  # 24 lines
    assert {line.label for line in few["cpu"].lines} == {"mean", "busiest"}
    assert [line.label for line in by_key(make_nodes(1, 2, 120))["busy"].lines] == ["GPU 0", "GPU 1"]


def test_shares_are_in_percent_and_every_axis_begins_at_0_and_holds_all_values() -> None:
    for panel in panels(make_nodes(2, 4, 120, PAUSES)):
        values = [line.values for line in panel.lines] + [band.high for band in panel.bands]
        assert panel.top >= max(float(np.nanmax(each)) for each in values) > 0
        if panel.unit.name == "%":
            assert panel.top == 100
    busy = by_key(make_nodes(1, 1, 120, PAUSES))["busy"].lines[0].values
    assert busy.min() == 0
    assert 90 < busy.max() <= 100


def test_a_long_run_has_no_more_points_than_a_picture_shows() -> None:
    line = by_key(make_nodes(1, 1, 7200, [(3600.0, 3602.0, 0.03)]))["busy"].lines[0]
    assert len(line.values) <= 2 * BINS
    assert 3 in line.values[line.times_s > BEGIN_S + 3000]  # the pause of one sample is still there


@pytest.mark.parametrize(
    ("received", "unit", "drawn"),
    [(1.1e10, "GB/s", True), (4e9, "GB/s", True), (2e9, "GB/s", False), (3e5, "kB/s", False), (20.0, "bytes/s", False)],
)
def test_the_rate_of_the_link_is_drawn_if_the_traffic_is_near_it_and_else_named(
    received: float, unit: str, drawn: bool
) -> None:
    panel = by_key([node(network_received_bytes_per_s=received, network_sent_bytes_per_s=1.0)])["network"]
    assert panel.unit.name == unit
    assert (panel.limit is not None) == drawn
    assert ("(link: " in panel.heading) != drawn
    known = panel.limit or panel.far_limit
    assert known is not None
    assert known.value * panel.unit.size == pytest.approx(12.5e9)  # 100 Gbit/s


def test_without_the_rate_of_the_link_none_is_shown() -> None:
    panel = by_key([node(about={"interface_bits_per_s": None})])["network"]
    assert (panel.limit, panel.far_limit, panel.heading) == (None, None, "Network ib0, MB/s")


def test_a_limit_is_shown_only_if_it_holds_for_all_gpus() -> None:
    alike = make_nodes(1, 2, 120)
    assert by_key(alike)["power"].limit is not None
    about = alike[0].about
    capped = about.replace(gpus=(about.gpus[0].replace(power_limit_w=250.0), about.gpus[1]))
    gpus = tuple(replace(gpu, about=own) for gpu, own in zip(alike[0].gpus, capped.gpus, strict=True))
    assert by_key([replace(alike[0], about=capped, gpus=gpus)])["power"].limit is None


def test_the_picture_names_its_phases_and_pauses() -> None:
    line = make_timeline(300, validations_s=[(60, 80)], epoch_steps=(1, 200, 400))
    nodes = make_nodes(1, 2, 300, [(60.0, 80.0, 0.1), (200.0, 202.0, 0.3)])
    found = dips(gpu_traces(nodes, "busy_fraction"), line.spans, 2.0)
    svg = Drawing(run_figure(panels(nodes), line.spans, line.epochs_s, found)).inline("usage", "1x2", "")
    for text in ("start-up, end", "warm-up", "validation", "every second epoch", "training", "GPU 1", "power, W"):
        assert f"{text}</text>" in svg, text
    assert svg.count("validation</text>") == 2  # in the legend, and at the pause
    assert "between epochs" not in svg  # nothing happened there


def test_a_run_without_an_instrument_has_a_picture_without_phases() -> None:
    svg = Drawing(run_figure(panels(make_nodes(1, 0, 60)), [Span("run", BEGIN_S, BEGIN_S + 60)])).inline(
        "usage", "1x1", ""
    )
    assert "warm-up" not in svg
    assert "busiest" in svg


def test_a_run_without_samples_says_so() -> None:
    assert "nothing sampled" in Drawing(run_figure([], [])).inline("usage", "1x1", "")


def test_many_epochs_are_not_shaded() -> None:
    nodes = make_nodes(1, 0, 600)
    few = run_figure(
        panels(nodes), make_timeline(600, epoch_steps=range(1, 900, 100)).spans, (BEGIN_S + 60, BEGIN_S + 90)
    )
    many = run_figure(panels(nodes), [Span("run", BEGIN_S, BEGIN_S + 600)], [BEGIN_S + 5 * k for k in range(100)])
    assert "every second epoch" in Drawing(few).inline("usage", "1x1", "")
    assert "every second epoch" not in Drawing(many).inline("usage", "1x1", "")


def test_a_dip_at_the_edge_is_labelled_inside_the_picture() -> None:
    nodes = make_nodes(1, 1, 100)
    svg = Drawing(run_figure(panels(nodes), [], (), [Dip("validation", BEGIN_S, BEGIN_S + 2, 0.0)])).inline(
        "a", "b", ""
    )
    assert "validation</text>" in svg
