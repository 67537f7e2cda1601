"""The samples of a node: what is read, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
from ddp_ladder.usage.samples import parse_samples
from make_usage import BEGIN_S, make_monitor_file, samples_text


def test_columns_of_node_and_gpus() -> None:
    about = make_monitor_file(gpu_count=2)
    read = parse_samples(samples_text(about, 3, gpu1_throttle_reasons=["none", "power_cap+thermal", ""]), about)
    assert len(read) == 3
    assert read.times_s.tolist() == [BEGIN_S, BEGIN_S + 2, BEGIN_S + 4]
    assert read.begins_s.tolist() == [BEGIN_S, BEGIN_S, BEGIN_S + 2]
    assert read.column("cpu_fraction").tolist() == [0.35] * 3
    assert read.gpu(1).column("power_w").tolist() == [340.0] * 3
    assert read.gpu(1).throttle_reasons == ((), ("power_cap", "thermal"), None)
    assert not any(name.startswith("gpu") for name in read.columns)


def test_an_unknown_value_is_nan() -> None:
    about = make_monitor_file(gpu_count=1)
    read = parse_samples(samples_text(about, 2, cpu_fraction=["", 0.5]), about)
    assert np.isnan(read.column("cpu_fraction")).tolist() == [True, False]
    assert np.isnan(read.gpu(0).column("tensor_active_fraction")).all()  # its cells are empty
    assert np.isnan(read.column("fabric_sent_bytes_per_s")).all()  # the column is absent


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_a_cut_last_line_is_left_out(cut: int) -> None:
    about = make_monitor_file()
    assert len(parse_samples(samples_text(about, 3)[:-cut], about)) == 2


def test_only_a_header_is_no_sample() -> None:
    about = make_monitor_file(gpu_count=1)
    assert len(parse_samples(samples_text(about, 0), about)) == 0


DAMAGED = {
    "its header does not begin with time_s": lambda text: text.replace("time_s,", "", 1),
    "it has no header": lambda text: text[:30],
    "there is no column gpu2_power_w of a node with 2 GPUs": lambda text: text.replace("gpu1_power_w", "gpu2_power_w"),
    "there is no column cpu_share": lambda text: text.replace("cpu_fraction", "cpu_share", 1),
    "a line is incomplete": lambda text: text.replace(",340.0", "", 1),
    "gpu0_power_w contains something else than numbers": lambda text: text.replace(",340.0", ",much", 1),
    "gpu0_power_w contains an impossible figure": lambda text: text.replace(",340.0", ",-1", 1),
    "cpu_fraction contains an impossible figure": lambda text: text.replace(",0.35,", ",nan,", 1),
    "its time_s is missing or goes back": lambda text: text.replace(f"{BEGIN_S + 2:.3f}", f"{BEGIN_S - 2:.3f}"),
}


@pytest.mark.parametrize("problem", DAMAGED)
def test_damage_is_named(problem: str) -> None:
    about = make_monitor_file(gpu_count=2)
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse_samples(DAMAGED[problem](samples_text(about, 3)), about)
