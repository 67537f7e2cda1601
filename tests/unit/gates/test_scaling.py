"""From records to points: medians, intervals, ratios, and when there is none."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_args

import numpy as np
import pytest
from ddp_ladder.analysis.decisions import Work, with_cost
from ddp_ladder.common.findings import Finding, remark
from ddp_ladder.gates.figures import FIGURES, SCALING_CSV, columns, csv_row
from ddp_ladder.gates.interval import Variance, in_doubt
from ddp_ladder.gates.points import Key, ScalePoint
from ddp_ladder.gates.scaling import efficiency_by_total_time, scale_points
from ddp_ladder.plan.plan import RunSpec, Units
from ddp_ladder.records.raw_models import Witnessed, WitnessedPlace
from ddp_ladder.records.record import Record, Source
from make_records import make_failed_record, make_record, make_spec, make_specs, records_by_name, repeated, with_steps

RATES = {"1x1": 1000.0, "1x2": 1800.0, "2x1": 1600.0, "2x2": 3000.0}


def by_scale(points: Sequence[ScalePoint]) -> dict[str, ScalePoint]:
    return {str(point.scale): point for point in points}


def ladder(specs: Sequence[RunSpec], between: float = 0.0, **kwargs: Any) -> dict[str, Record]:
    """Return the records of these runs; between: see ``repeated``."""
    return records_by_name([make_record(s, repeated(RATES[str(s.scale)], s, between), **kwargs) for s in specs])


def test_figures_of_a_full_ladder() -> None:
    specs = make_specs(["1x1", "1x2", "2x1"])
    records = ladder(specs, exposed_comm_fraction=0.1)
    best = make_spec("1x2", repeat=3)  # the median counts, and not the best
    records[best.name] = make_record(best, 1.2 * RATES["1x2"], exposed_comm_fraction=0.1)
    points = by_scale(scale_points(specs, records))
    point = points["1x2"]
    assert (point.status, point["samples_per_s"], point["speedup"]) == ("ok", 1800, pytest.approx(1.8))
    assert point["efficiency"] == pytest.approx(0.9)
    assert point["step_time_s"] == pytest.approx(128 / 1800)
    assert point["gpu_hours_per_million_samples"] == pytest.approx(2e6 / 1800 / 3600)
    assert (point["data_wait_fraction"], point["exposed_comm_fraction"]) == (0.02, 0.1)
    assert (point.repeats, point.batch_per_gpu, point.global_batch) == (3, 64, 128)
    assert points["2x1"]["efficiency"] == pytest.approx(0.8)
    assert (points["1x1"]["efficiency"], points["1x1"]["speedup"]) == (1.0, 1.0)


def test_a_failed_repeat_keeps_the_figures_of_the_good_ones_but_no_efficiency() -> None:
    specs = make_specs(["1x1", "1x2"])
    records = ladder(specs)
    records["default/weak/1x2/r2"] = make_failed_record(make_spec("1x2", repeat=2))
    point = by_scale(scale_points(specs, records))["1x2"]
    assert (point.status, point.repeats, point["samples_per_s"]) == ("failed", 2, 1800)
    assert (point["efficiency"], point["speedup"]) == (None, None)
    assert "1 of 3 repeats failed" in point.note


@pytest.mark.parametrize("why", ["failed", "has not been run", "is not in the plan"])
def test_without_a_baseline_there_is_no_efficiency(why: str) -> None:
    specs = make_specs(["1x2"] if "plan" in why else ["1x1", "1x2"])
    records = ladder([spec for spec in specs if spec.world_size == 2 or why == "failed"])
    if why == "failed":
        records["default/weak/1x1/r1"] = make_failed_record(make_spec("1x1"))
    point = by_scale(scale_points(specs, records))["1x2"]
    assert (point.status, point["efficiency"], point["samples_per_s"]) == ("not comparable", None, 1800)
    assert f"the 1x1 baseline of default, weak, {why}" in point.note


@pytest.mark.parametrize("scale", ["1x1", "1x2"])
def test_repeats_that_differ_among_themselves(scale: str) -> None:
    specs = make_specs(["1x1", "1x2"])
    records = ladder(specs)
    odd = make_spec(scale, repeat=3)
    records[odd.name] = make_record(odd, RATES[scale], fingerprint={"torch": "2.14.0"})
    points = by_scale(scale_points(specs, records))
    assert points["1x2"].status == "not comparable"
    assert "torch: 2.13.0 in r1, 2.14.0 in r3" in points["1x2"].note
    assert points["1x1"].status == ("not comparable" if scale == "1x1" else "ok")


def test_more_than_ideal_is_flagged() -> None:
    specs = make_specs(["1x1", "1x2"])
    records = [make_record(s, 1000.0 if s.gpus == 1 else 2140.0) for s in specs]
    point = by_scale(scale_points(specs, records_by_name(records)))["1x2"]
    assert (point.status, point["efficiency"]) == ("check", pytest.approx(1.07))
    assert point.note.startswith("107 %: more than the ideal; the baseline is slower than it should")


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_a_ladder_that_starts_above_one_gpu_is_compared_with_its_first_scale(mode: str) -> None:
    rates = {"1x2": 1900.0, "1x4": 3500.0, "2x4": 6500.0}
    specs = [*make_specs(["1x2"], stage="stage1", modes=[mode]), *make_specs(["1x4", "2x4"], modes=[mode])]
    records = [make_record(spec, repeated(rates[str(spec.scale)], spec)) for spec in specs]
    first, _, top = scale_points(specs, records_by_name(records))
    assert (first.status, first["speedup"], first["efficiency"], first.is_baseline) == ("ok", 1.0, 1.0, True)
    assert (top.baseline, top.status, top["speedup"]) == ("1x2", "ok", pytest.approx(6500 / 1900))
    assert top["efficiency"] == pytest.approx(6500 / 1900 / 4)
    assert top.of("efficiency").low < top["efficiency"] < top.of("efficiency").high
    assert (first["efficiency_total_time"], top["efficiency_plain"], top.note) == (1, None, "")


@pytest.mark.parametrize("where", ["1x1", "1x2"])
def test_a_doubt_here_or_at_the_baseline_travels_with_what_is_computed_from_it(where: str) -> None:
    specs = make_specs(["1x1", "1x2"])
    doubt = remark("doubtful count", "its samples are a guess", "set them")
    records = ladder(specs)
    for name, record in records.items():
        records[name] = record.replace(remarks=(doubt,) * (str(record.spec.scale) == where))
    first, point = with_cost(scale_points(specs, records), Work(samples=1e6), Units())
    for key in ("speedup", "efficiency"):
        assert in_doubt(point.of(key)) == f"at {where} its samples are a guess"
    for key in ("samples_per_s", "gpu_hours_per_million_samples", "hours_to_solution", "wall_hours_to_solution"):
        doubted = first if where == "1x1" else point
        assert [in_doubt(one.of(key)) for one in (first, point) if one.of(key).doubts] == [in_doubt(doubted.rate)]


def with_shares(records: dict[str, Record], *shares: float) -> dict[str, Record]:
    """Return records of a script of which a witness saw these shares of each pass train, where the rules count all."""
    trained = round(2560 * sum(shares) / len(shares))
    place = WitnessedPlace(
        lines=("/work/train.py:31", "0a1b2c3d"), passes=len(shares), passes_that_train=len(shares), batches=40,
        trained=20, samples=2560, samples_trained=trained, sizes={"64": 40}, batches_of_a_step={"1": 20}, targets=0,
        counted=2560, shares=shares,
    )  # fmt: skip
    witness = Witnessed(status="differs", why="it saw fewer", places=(place,))
    return {name: record.replace(witness=witness) for name, record in records.items()}


def test_an_interval_is_widened_by_the_scatter_of_the_shares_that_a_witness_saw_and_no_ratio_is() -> None:
    """The same correction is on both sides of a ratio. Equal shares are exact."""
    specs = make_specs(["1x1", "1x2"])
    records = ladder(specs)
    equal, differing = (
        by_scale(scale_points(specs, with_shares(records, *shares)))["1x2"]
        for shares in ((0.5, 0.5), (0.45, 0.55, 0.5))
    )
    known, wider = (point.of("samples_per_s") for point in (equal, differing))
    assert (known.low, known.high) == by_scale(scale_points(specs, records))["1x2"].of("samples_per_s").ends
    assert known.log == wider.log
    error = np.std([0.45, 0.55, 0.5], ddof=1) / 0.5 / np.sqrt(3)
    assert np.log(wider.ends[1] / wider.value) == pytest.approx(Variance(error**2, 2).half_width, rel=0.01)
    assert wider.ends[0] < known.ends[0] <= known.ends[1] < wider.ends[1]
    assert equal.of("efficiency") == differing.of("efficiency")


def run(scale: str, wall_s: float, samples: int, repeat: int = 1) -> Record:
    """A run that trained ``samples`` in all in a time."""
    record = make_record(make_spec(scale, repeat=repeat))
    ranks = tuple(rank.replace(samples=samples // record.spec.gpus) for rank in record.ranks)
    return record.replace(ranks=ranks, timing=record.timing.replace(wall_s=wall_s))


def test_efficiency_by_total_time_is_the_centres_formula_by_the_sample() -> None:
    """CSC: a speed-up of 1.5 when doubling the nodes, or of 3 when quadrupling, is 75 %."""
    base = [run("1x4", 600.0, 8000)]
    for here in (run("2x4", 400.0, 8000), run("4x4", 200.0, 8000), run("2x4", 800.0, 16000)):
        alone = efficiency_by_total_time([here], base)
        assert (alone.value, alone.low, alone.high) == (pytest.approx(0.75), None, None)
    several, bases = (
        [run(scale, wall_s + k, 8000, k + 1) for k in range(3)] for scale, wall_s in (("2x4", 400), ("1x4", 600))
    )
    found = efficiency_by_total_time(several, bases)
    assert found.low < found.value < found.high
    assert efficiency_by_total_time([*several, run("2x4", 60, 0, 4)], base) is None  # its samples were not counted
    assert efficiency_by_total_time([], base) is None


def test_repeats_of_several_jobs_show_what_jobs_differ_by() -> None:
    specs = make_specs(["1x1", "1x2"], repeats=4)
    records = []
    for spec in specs:
        record = make_record(spec, 1000.0 * spec.world_size * (1 if spec.repeat < 3 else 0.95), spread=0.0)
        job = record.job.replace(id=f"{spec.scale}-{spec.repeat // 3}")
        records.append(record.replace(job=job))
    several = by_scale(scale_points(specs, records_by_name(records)))["1x2"]
    assert several.jobs == 2
    one_job = [record.replace(job=records[0].job) for record in records]
    one = by_scale(scale_points(specs, records_by_name(one_job)))["1x2"]
    assert several.of("efficiency").low < 0.93 < one.of("efficiency").low  # the other way round: 0.95


def note_on_batches(source: Source, *remarks: Finding, **fingerprint: Any) -> str:
    specs = make_specs(["1x1", "1x2"])
    records = [
        record.replace(throughput=record.throughput.replace(source=source), remarks=remarks)
        for record in ladder(specs, fingerprint=fingerprint).values()
    ]
    return by_scale(scale_points(specs, records_by_name(records)))["1x2"].note


def test_a_batch_in_doubt_is_not_advised_as_the_plans() -> None:
    varies = note_on_batches("counted", batch_per_gpu=5, batch_varies=[4, 32])
    assert "the batches vary in size: a step has 4 to 32 samples per process, the plan says 64" in varies
    guessed = note_on_batches("guessed", batch_per_gpu=1)
    assert "the 1 is a guess: set workload.samples_per_step" in guessed
    doubtful = remark("doubtful count", "the number of samples is doubtful", "")
    doubted = note_on_batches("counted", doubtful, batch_per_gpu=128)
    assert "the 128 is in doubt: set workload.samples_per_step" in doubted
    odd = note_on_batches("counted", batch_per_gpu=96)
    assert "a step of the script has 96 samples per GPU, the plan says 64: is {batch_per_gpu} in" in odd
    assert not any("set workload.batch_per_gpu" in note for note in (varies, guessed, doubted, odd))


def test_the_parts_of_a_scale_s_start_up_add_up() -> None:
    """They are those of the repeat with the median total: the medians of the parts would be 2, 2, 1 and 2 of 8."""
    specs = make_specs(["1x1"])
    names = ("spawn", "import_torch", "process_group", "first_step")
    records = []
    for total, spec, parts in zip((8.0, 7.0, 9.0), specs, ((2, 4, 1, 0.5), (1, 2, 1, 2), (4, 1, 1, 2)), strict=True):
        startup_s = {**dict(zip(names, parts, strict=True)), "total": total, "compile": 0.25}
        record = make_record(spec)
        records.append(record.replace(ranks=(record.ranks[0].replace(startup_s=startup_s),)))
    (point,) = scale_points(specs, records_by_name(records))
    known = (point["startup_spawn_s"], point["startup_import_torch_s"], point["startup_process_group_s"])
    assert (*known, point["startup_script_s"], point["startup_first_step_s"]) == (2, 4, 1, 0.5, 0.5)
    assert (point["startup_s"], point["startup_compile_s"]) == (8, 0.25)


BUSY = np.tile([*[1.0] * 15, 3.0], 4)  # a loop that evaluates in each 16th step


def busy_ladder(busy_at: Sequence[str]) -> dict[str, ScalePoint]:
    """1x1, 1x2 and 2x1, all of whose ordinary steps take 1 s; at these scales each 16th takes 3 s."""
    specs = make_specs(["1x1", "1x2", "2x1"])
    times_s = {True: BUSY, False: np.tile([0.99, 1.0, 1.0, 1.01], 16)}
    records = [with_steps(make_record(spec), times_s[str(spec.scale) in busy_at]) for spec in specs]
    return by_scale(scale_points(specs, records_by_name(records)))


def test_slow_steps_that_recur_are_in_every_figure() -> None:
    points = busy_ladder(["1x1", "1x2", "2x1"])
    for point, ranks in ((points["1x1"], 1), (points["1x2"], 2)):
        assert (point.statistic, point["step_time_s"]) == ("samples / time", pytest.approx(18 / 16))
        assert point["samples_per_s"] == point["samples_per_s_total"] == pytest.approx(64 * ranks / (18 / 16))
        assert point.rate.low < point.rate.value < point.rate.high < 0.98 * 64 * ranks
        assert point.note == "the figures are samples / time, 11.1 % below the median of blocks: slow steps recur"
    assert points["1x2"]["efficiency"] == pytest.approx(1)
    assert points["1x2"].of("efficiency").low < 0.97  # both sides have the error of the same statistic


def test_a_disturbance_in_one_repeat_changes_no_statistic_and_is_noted() -> None:
    specs = make_specs(["1x1"], repeats=1)
    times_s = np.tile([0.99, 1.0, 1.0, 1.01], 5)
    times_s[7] = 4.0
    (point,) = scale_points(specs, records_by_name([with_steps(make_record(spec), times_s) for spec in specs]))
    assert (point.statistic, point["samples_per_s"]) == ("median of blocks", pytest.approx(64))
    assert "samples / time is 55.7 samples/s, 13.0 % below" in point.note
    assert point["step_time_s_mean"] == pytest.approx(times_s.mean())


@pytest.mark.parametrize(("compile_later", "is_named"), [(3.8, True), (1.0, False), (0.0, False), (None, False)])
def test_a_slow_step_that_a_recompilation_explains_is_named_as_one(compile_later: float | None, is_named: bool) -> None:
    (spec,) = make_specs(["1x1"], repeats=1)
    times_s = np.tile([0.099, 0.1, 0.1, 0.101], 5)
    times_s[7] = 4.0
    record = with_steps(make_record(spec), times_s)
    rank = record.ranks[0].replace(startup_s={"total": 12.0, "compile": 7.5, "compile_later": compile_later})
    (point,) = scale_points([spec], records_by_name([record.replace(ranks=(rank,))]))
    assert "some blocks are far from the others" in point.note
    assert ("torch.compile took 3.80 s after the first step" in point.note) is is_named
    (point,) = scale_points([spec], records_by_name([record.replace(ranks=())]))  # of a program without the instrument
    assert "torch.compile" not in point.note


def test_the_interval_of_slow_steps_that_recur_covers_the_truth() -> None:
    generator = np.random.default_rng(9)
    specs = make_specs(["1x1", "1x2"])
    held = {"rate": 0, "efficiency": 0}
    for _ in range(100):
        records = []
        for spec in specs:
            times_s = generator.lognormal(0, 0.02, 100)
            times_s[generator.integers(16) :: 16] *= 3
            records.append(with_steps(make_record(spec), times_s))
        point = by_scale(scale_points(specs, records_by_name(records)))["1x2"]
        held["rate"] += point.of("samples_per_s").low <= 128 * 16 / 18 <= point.of("samples_per_s").high
        held["efficiency"] += point.of("efficiency").low <= 1 <= point.of("efficiency").high
    assert min(held.values()) >= 90


@pytest.mark.parametrize(
    ("changed", "note"),
    [
        ({"drift_fraction": 0.08}, "the last third of the steps was 8 % slower than the first"),
        ({"drift_fraction": -0.08}, "the last third of the steps was 8 % faster than the first"),
        ({"warmup_stable": False}, "the step times of 3 of 3 repeats of 1x1 were not steady after the warm-up"),
    ],
)
def test_what_a_median_would_hide_is_noted(changed: dict[str, Any], note: str) -> None:
    specs = make_specs(["1x1"])
    records = [make_record(spec) for spec in specs]
    records = [record.replace(timing=record.timing.replace(**changed)) for record in records]
    (point,) = scale_points(specs, records_by_name(records))
    assert point.status == "ok"
    assert note in point.note


def with_plain() -> tuple[list[RunSpec], dict[str, Record]]:
    """A ladder with three good runs of the script alone."""
    rungs = list(make_specs(["1x1", "1x2"]))
    plain = [make_spec("1x1", repeat=k, variant="plain", launcher="python") for k in (1, 2, 3)]
    records = ladder(rungs, between=0.01)
    for spec in plain:
        record = make_record(spec, 1100.0)
        records[spec.name] = record.replace(world=record.world.replace(backend=None))
    return [*rungs, *plain], records


def by_variant_and_scale(specs: Sequence[RunSpec], records: dict[str, Record]) -> dict[tuple[str, str], ScalePoint]:
    return {(point.variant, str(point.scale)): point for point in scale_points(specs, records)}


def test_every_efficiency_is_also_given_against_the_script_alone() -> None:
    points = by_variant_and_scale(*with_plain())
    one, two = points["default", "1x1"], points["default", "1x2"]
    assert (one["efficiency"], two["efficiency"]) == (1, pytest.approx(0.9))
    assert one["efficiency_plain"] == pytest.approx(1000 / 1100)
    assert two["efficiency_plain"] == pytest.approx(1800 / 2200)
    assert two.of("efficiency_plain").low < two["efficiency_plain"] < two.of("efficiency_plain").high
    alone = points["plain", "1x1"]
    assert (alone["samples_per_s"], alone.status, alone.note, alone.is_plain) == (1100, "ok", "", True)
    assert (alone["efficiency"], alone["speedup"], alone["efficiency_plain"]) == (None, None, None)


def test_a_script_that_needs_a_launcher_costs_a_note() -> None:
    specs, records = with_plain()
    failing, *rest = (spec for spec in specs if spec.is_plain)
    why = "rank 0: ValueError: environment variable RANK expected, but not set"
    records[failing.name] = make_failed_record(failing, why=why)
    for spec in rest:
        records[spec.name] = make_failed_record(spec, started=False)
    points = by_variant_and_scale(specs, records)
    one, two = points["default", "1x1"], points["default", "1x2"]
    said = f"no efficiency against the plain script: the script failed without a launcher ({why})"
    assert (one.note, one.status) == (said, "ok")
    assert (two.note, two["efficiency"], two["efficiency_plain"]) == ("", pytest.approx(0.9), None)


# The table of figures is complete, and defines each figure once


EVERY_COLUMN = [column for figure in FIGURES for column in figure.columns]


def test_every_column_of_scaling_csv_belongs_to_exactly_one_figure() -> None:
    told = Counter(column.key for column in EVERY_COLUMN)
    assert set(told.values()) == {1}
    (point,) = scale_points([make_spec()], {})
    assert sorted(csv_row(point)) == sorted(SCALING_CSV)


def test_every_figure_of_a_point_has_a_column() -> None:
    assert {*get_args(Key)} == {column.key for column in columns("csv")} - {field.name for field in fields(ScalePoint)}


def test_every_figure_of_a_run_is_read_from_its_record() -> None:
    record = make_record(make_spec("1x2"))
    nothing = make_failed_record(make_spec("1x2"))
    for column in columns("runs"):
        assert column.of_run(nothing) is None
        assert column.text(None) == "\u2013"
    shown = {column.heading: column.text(column.of_run(record)) for column in columns("runs") if column.of_run}
    assert (shown["steps measured"], shown["samples/s"], shown["peak memory"]) == ("120", "1,000", "412")


def test_the_headroom_is_what_the_rank_with_the_most_memory_did_not_use() -> None:
    record = make_record(make_spec("1x2", device="cuda"))
    more = record.ranks[1].replace(peak_memory_bytes={"host": 1, "device": 29_400_000_000})
    headroom = next(column for column in columns("usage") if column.key == "memory_headroom_fraction")
    assert headroom.of_run(record) == 0.75
    assert headroom.of_run(record.replace(ranks=(record.ranks[0], more))) == 0.25
    unknown = tuple(rank.replace(memory_limit_bytes={}) for rank in record.ranks)
    assert headroom.of_run(record.replace(ranks=unknown)) is None
