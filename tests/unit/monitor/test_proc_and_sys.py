"""What the monitor reads in /proc and /sys: the texts are those of Linux 6.18, of InfiniBand and of Slingshot hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_ladder.monitor.cpus import parse_stat, use
from ddp_ladder.monitor.energy import Packages
from ddp_ladder.monitor.links import (
    fabric_bytes,
    interface_bits_per_s,
    interface_bytes,
    parse_net_dev,
    parse_rate,
    ports,
)
from ddp_ladder.monitor.memory import parse_meminfo, shm_used_bytes, total_bytes, used_bytes
from ddp_ladder.monitor.rates import Rates
from make_files import write_files

STAT = """\
cpu  1674673 98707 388193 490636 14357 0 8215 2554 0 0
cpu0 804691 50401 191439 283805 4776 0 1658 1266 0 0
cpu1 869981 48306 196753 206830 9580 0 6556 1287 0 0
intr 52419284 0 9 0
ctxt 81234
"""
LATER = """\
cpu  1674913 98707 388213 490796 14377 0 8215 2554 0 0
cpu0 804871 50401 191459 283805 4776 0 1658 1266 0 0
cpu1 870041 48306 196753 206950 9600 0 6556 1287 0 0
intr 52419290 0 9 0
"""
NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier
    lo: 7106811   58126    0    0    0     0          0         0  7106811   58126    0    0    0     0       0
  eth0: 10541     120    0    0    0     0          0         0    45054     127    0    0    0     0       0
eth0.5:1234567890123 1    0    0    0     0          0         0 9       1    0    0    0     0       0
"""


def test_the_busy_fractions_of_cpus() -> None:
    before, now = parse_stat(STAT), parse_stat(LATER)
    assert before[0] == (804691 + 50401 + 191439 + 1658 + 1266, 804691 + 50401 + 191439 + 283805 + 4776 + 1658 + 1266)
    both = use(before, now, {0, 1})
    assert both.usable == pytest.approx((1.0 + 60 / 200) / 2)
    assert (both.busiest, both.node) == (1.0, both.usable)
    one = use(before, now, {1})
    assert (one.usable, one.busiest) == (pytest.approx(0.3), pytest.approx(0.3))
    assert one.node == pytest.approx(0.65)


def test_the_busy_fraction_of_no_time_is_unknown() -> None:
    same = use(parse_stat(STAT), parse_stat(STAT), {0, 1})
    assert (same.usable, same.busiest, same.node) == (None, None, None)


def test_a_cpu_that_came_online_is_left_out_until_the_next_sample() -> None:
    before = {0: parse_stat(STAT)[0]}
    assert use(before, parse_stat(LATER), {0, 1}).node == 1.0


def test_the_bytes_of_an_interface() -> None:
    assert parse_net_dev(NET_DEV, "eth0") == (10541, 45054)
    assert parse_net_dev(NET_DEV, "eth0.5") == (1234567890123, 9)
    with pytest.raises(ValueError, match="no interface ib0 in"):
        parse_net_dev(NET_DEV, "ib0")


def test_this_machine() -> None:
    assert min(interface_bytes("lo")) >= 0
    assert interface_bits_per_s("lo") is None
    assert 0 < used_bytes() < total_bytes()
    assert shm_used_bytes() >= 0


def test_memory() -> None:
    memory = parse_meminfo("MemTotal:       24684088 kB\nMemAvailable:   23000000 kB\nHugePages_Total:       0\n")
    assert memory == {"MemTotal": 24684088 * 1024, "MemAvailable": 23000000 * 1024}


def infiniband(name: str, state: str = "4: ACTIVE", received: str = "1000\n", sent: str = "250\n") -> dict[str, str]:
    port = f"class/infiniband/{name}/ports/1"
    return {
        f"{port}/state": f"{state}\n",
        f"{port}/rate": "200 Gb/sec (4X HDR)\n",
        f"{port}/counters/port_rcv_data": received,
        f"{port}/counters/port_xmit_data": sent,
    }


def test_infiniband_counts_words_of_four_bytes_on_active_ports(tmp_path: Path) -> None:
    down = infiniband("mlx5_2", state="1: DOWN")
    root = write_files(tmp_path, {**infiniband("mlx5_0"), **infiniband("mlx5_1"), **down})
    found, notes = ports(root)
    assert [(port.about.name, port.about.bits_per_s) for port in found] == [
        ("mlx5_0/1", 200_000_000_000),
        ("mlx5_1/1", 200_000_000_000),
    ]
    assert fabric_bytes(found) == (8000, 2000)
    assert notes == []


def test_slingshot_counts_bytes_with_the_time_behind_them(tmp_path: Path) -> None:
    device = "class/cxi/cxi0/device"
    root = write_files(
        tmp_path,
        {
            f"{device}/net/hsn0/speed": "200000\n",
            f"{device}/telemetry/hni_sts_rx_ok_octets": "90049@1674703075.363699378\n",
            f"{device}/telemetry/hni_sts_tx_ok_octets": "17@1674703075.363699378\n",
        },
    )
    (port,), notes = ports(root)
    assert (port.about.name, port.about.bits_per_s) == ("cxi0", 200_000_000_000)
    assert port.bytes() == (90049, 17)
    assert notes == []


def test_a_port_without_readable_counters_is_a_note(tmp_path: Path) -> None:
    files = infiniband("mlx5_0")
    del files["class/infiniband/mlx5_0/ports/1/counters/port_rcv_data"]
    found, (note,) = ports(write_files(tmp_path, files))
    assert found == []
    assert note.startswith("mlx5_0/1: its counters cannot be read: [Errno 2]")


def test_rates_of_links() -> None:
    assert parse_rate("100 Gb/sec (4X EDR)") == 100_000_000_000
    assert parse_rate("2.5 Gb/sec (1X SDR)") == 2_500_000_000
    assert parse_rate("") is None


def test_rates_of_counters() -> None:
    rates = Rates()
    assert rates.of({"a": 5.0, "b": None}, 10.0) == {"a": None, "b": None}
    assert rates.of({"a": 25.0, "b": 7.0}, 12.0) == {"a": 10.0, "b": None}
    assert rates.of({"a": 26.0, "b": 9.0}, 12.05) == {"a": None, "b": None}  # CPU time has steps of 10 ms
    assert rates.of({"a": 3.0, "b": 9.0}, 14.05) == {"a": None, "b": 0.0}  # set back


def rapl(energy_uj: int) -> dict[str, str]:
    return {
        "intel-rapl:0/name": "package-0\n",
        "intel-rapl:0/energy_uj": f"{energy_uj}\n",
        "intel-rapl:0/max_energy_range_uj": "262143328850\n",
        "intel-rapl:0:0/name": "core\n",
        "intel-rapl:0:0/energy_uj": "5\n",
        "intel-rapl:1/name": "psys\n",
        "intel-rapl:1/energy_uj": "5\n",
        "intel-rapl:1/max_energy_range_uj": "262143328850\n",
    }


def test_energy_of_the_packages_also_over_the_counters_end(tmp_path: Path) -> None:
    packages = Packages(write_files(tmp_path, rapl(262143000000)))
    assert (packages.readable, packages.note) == (True, None)
    write_files(tmp_path, rapl(1_671_150))
    assert packages.used_j() == pytest.approx(2.0)
    write_files(tmp_path, rapl(2_671_150))
    assert packages.used_j() == pytest.approx(3.0)


def test_rapl_that_cannot_be_read_is_a_note(tmp_path: Path) -> None:
    files = rapl(1)
    del files["intel-rapl:0/energy_uj"]
    packages = Packages(write_files(tmp_path, files))
    assert not packages.readable
    assert "No such file" in str(packages.note)
    assert Packages(tmp_path / "none").note == "RAPL: there are no counters of this processor"
