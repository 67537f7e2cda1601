"""The table of figures is complete, and defines each figure once."""

from collections import Counter
from dataclasses import fields

from ddp_ladder.gates.figures import FIGURES, columns, csv_columns
from ddp_ladder.gates.points import ScalePoint
from make_records import make_failed_record, make_record, make_spec

IN_SCALING_CSV = """
    variant mode stage nodes gpus_per_node world_size batch_per_gpu global_batch repeats
    samples_per_s samples_per_s_low samples_per_s_high speedup efficiency efficiency_low efficiency_high
    step_time_s data_wait_fraction exposed_comm_fraction gpu_hours_per_million_samples status
    speedup_low speedup_high step_time_s_low step_time_s_high startup_s
    startup_spawn_s startup_import_torch_s startup_process_group_s startup_script_s startup_first_step_s
    startup_compile_s samples_per_s_total samples_per_s_end_to_end step_time_s_p5 step_time_s_p95
    step_time_s_mean drift_fraction statistic efficiency_plain efficiency_plain_low efficiency_plain_high
    peak_memory_bytes memory_headroom_fraction gpu_busy_fraction gpu_power_w cpu_fraction energy_j_per_sample
    compute_s exposed_comm_s data_wait_s imbalance_s rest_s
    efficiency_total_time efficiency_total_time_low efficiency_total_time_high wall_s
    hours_to_solution hours_to_solution_low hours_to_solution_high wall_hours_to_solution
    gpu_hours_to_solution energy_kwh_to_solution
    model_flops_per_sample tflop_per_s_per_gpu fraction_of_matrix_rate fraction_of_peak
    flops_precision flops_not_counted
    jobs saves saves_s saved_bytes saving_fraction
    tokens_per_sample tokens_per_s tokens_per_s_per_gpu
    centre_hours_per_million_samples centre_hours_to_solution carbon_kg_to_solution parameters note
""".split()
EVERY_COLUMN = [column for figure in FIGURES for column in figure.columns]


def test_columns_of_scaling_csv_that_readers_rely_on() -> None:
    assert list(csv_columns()) == IN_SCALING_CSV


def test_every_column_of_scaling_csv_belongs_to_exactly_one_figure() -> None:
    told = Counter(key for column in EVERY_COLUMN for key in column.keys)
    assert set(told.values()) == {1}
    assert set(csv_columns()) <= set(told)


def test_every_number_of_a_point_is_a_figure() -> None:
    numbers = {field.name for field in fields(ScalePoint) if str(field.type).split(" | ")[0] in ("int", "float")}
    assert len(numbers) > 30
    assert numbers <= {key for column in EVERY_COLUMN for key in column.keys}


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
