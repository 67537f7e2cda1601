"""Parsing, on what a real Slurm printed (tests/unit/slurm_output)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from ddp_ladder.common.messages import UserError
from ddp_ladder.slurm.facts import NO_ACCOUNTING, Accounting
from ddp_ladder.slurm.offer import (
    SlurmError,
    parse_nodes,
    parse_partitions,
    parse_reservations,
    read_offer,
    run_command,
)
from slurm_captured import CAPTURED, answer

PARTITIONS = parse_partitions((CAPTURED / "partition.txt").read_text())
NODES = {node.name: node for node in parse_nodes((CAPTURED / "node.txt").read_text())}


def test_partitions_and_their_defaults() -> None:
    assert list(PARTITIONS) == ["gpu", "debug", "closed", "idle", "picky", "denying", "rooted"]
    assert [name for name, each in PARTITIONS.items() if each.default] == ["gpu"]
    assert [PARTITIONS[name].state for name in ("gpu", "closed", "idle")] == ["UP", "DOWN", "INACTIVE"]


def test_limits_of_a_partition() -> None:
    picky, gpu = PARTITIONS["picky"], PARTITIONS["gpu"]
    assert (picky.max_nodes, picky.max_cpus_per_node, picky.max_memory_per_node_mb) == (2, 6, 8000)
    assert (picky.max_time_min, gpu.max_time_min, PARTITIONS["denying"].max_time_min) == (36 * 60, 24 * 60, None)
    assert (gpu.max_nodes, gpu.max_cpus_per_node, gpu.max_memory_per_node_mb) == (None, None, None)
    assert (picky.qos, gpu.qos) == ("small", None)


def test_who_may_use_a_partition() -> None:
    picky, denying, rooted = PARTITIONS["picky"], PARTITIONS["denying"], PARTITIONS["rooted"]
    assert (picky.allow_accounts, picky.allow_qos, picky.deny_accounts) == (("project", "other"), ("normal",), ())
    assert (denying.allow_accounts, denying.deny_accounts, denying.deny_qos) == (None, ("project",), ("small",))
    assert (rooted.allow_groups, rooted.root_only) == (("nobody",), True)
    assert PARTITIONS["gpu"].allow_groups is None


def test_nodes() -> None:
    node = NODES["node1"]
    assert (node.cpus, node.memory_mb, node.gpus) == (8, 16000, {"a100": 4})
    assert node.features == ("ib", "bigmem")
    assert NODES["node3"].features == ()
    assert node.partitions == ("gpu", "debug", "closed")


def test_states_of_nodes() -> None:
    assert NODES["node3"].state == ("IDLE", "MAINTENANCE", "RESERVED")
    assert NODES["node5"].state == ("IDLE", "DRAIN")
    assert NODES["node6"].state == ("DOWN", "NOT_RESPONDING")
    assert [name for name, node in NODES.items() if node.can_start_jobs] == ["node1", "node2", "node4"]


def test_state_with_a_sign_as_before_slurm_21() -> None:
    line = "NodeName=n1 CPUTot=4 State=DOWN*+DRAIN RealMemory=1 Reason=power=lost? [root@2026-01-01T00:00:00]"
    (node,) = parse_nodes(line)
    assert node.state == ("DOWN", "DRAIN", "NOT_RESPONDING")
    assert node.gpus == {}


def test_cores_and_memory_that_the_system_keeps_are_not_offered() -> None:
    (node,) = parse_nodes("NodeName=n1 CPUEfctv=6 CPUTot=8 State=IDLE RealMemory=4000 MemSpecLimit=1000")
    assert (node.cpus, node.memory_mb) == (6, 3000)


def test_reservations() -> None:
    found = parse_reservations((CAPTURED / "reservation.txt").read_text())
    assert (found["course"].active, found["course"].users, found["course"].nodes) == (True, ("root",), ("node3",))
    assert (found["later"].active, found["later"].accounts) == (False, ("project",))
    assert found["later"].nodes == ("node1", "node2")
    assert parse_reservations("No reservations in the system\n") == {}


def test_the_whole_offer_with_accounting() -> None:
    offer = read_offer(answer)
    assert offer.version == "22.05.8"
    assert not offer.all_partitions_must_fit
    accounting = offer.accounting
    assert isinstance(accounting, Accounting)
    assert accounting.enforced == {"associations", "limits", "qos"}
    assert accounting.default_account == "project"
    project, root = accounting.associations
    assert (project.account, project.default_qos, project.qos) == ("project", "normal", ("normal", "small"))
    assert (project.limits.max_wall_min, project.limits.per_job) == (20 * 60, {"node": 5})
    assert root.limits.max_wall_min is None
    assert accounting.accounts["project"].limits.per_group == {"gres/gpu": 16}
    assert accounting.accounts["project"].parent == "root"
    small, huge = accounting.qos["small"], accounting.qos["huge"]
    assert (small.max_wall_min, small.per_job) == (10, {"gres/gpu": 2, "node": 1})
    assert (huge.per_user, huge.per_account) == ({"gres/gpu": 8, "node": 3}, {"mem": 1024 * 1024})
    assert huge.per_group == {"cpu": 100, "mem": 64 * 1024, "node": 4}
    assert huge.minutes_per_job == {"cpu": 1000, "gres/gpu": 600}
    assert huge.max_wall_min == 2 * 24 * 60


def test_no_slurmdbd_is_no_accounting() -> None:
    def without(argv: Sequence[str]) -> str:
        return answer(argv).replace("accounting_storage/slurmdbd", "accounting_storage/none")

    assert read_offer(without).accounting == NO_ACCOUNTING


def test_a_silent_slurmdbd_is_reported_as_such() -> None:
    def silent(argv: Sequence[str]) -> str:
        if argv[0] == "sacctmgr":
            raise SlurmError("sacctmgr: error\nConnection refused")
        return answer(argv)

    assert read_offer(silent).accounting == "the accounting does not answer (Connection refused)"


def test_a_silent_controller_is_one_message() -> None:
    def silent(argv: Sequence[str]) -> str:
        raise SlurmError("slurm_load_partitions: Unable to contact slurm controller (connect failure)")

    with pytest.raises(UserError, match="the controller does not answer") as message:
        read_offer(silent)
    assert "connect failure" in str(message.value)


def test_a_command_that_fails_tells_its_own_message() -> None:
    with pytest.raises(SlurmError, match="no such thing"):
        run_command(["sh", "-c", "echo no such thing >&2; exit 3"])
    with pytest.raises(SlurmError, match="no-such-program: No such file"):
        run_command(["no-such-program"])


BANNERS = ["*** Maintenance | on Monday ***\n", "NodeName=\nPartitionName=\n", "|||||||||||\n", "\n"]


@pytest.mark.parametrize("banner", BANNERS[::3])
def test_what_a_site_prints_beside_the_answers_is_skipped(banner: str) -> None:
    assert read_offer(lambda argv: banner + answer(argv).replace("\n", f"\n{banner}")) == read_offer(answer)


@pytest.mark.parametrize("banner", BANNERS)
def test_what_it_prints_instead_of_them_is_one_message(banner: str) -> None:
    with pytest.raises(UserError, match="what it offers cannot be read") as message:
        read_offer(lambda argv: banner)
    assert re.search("found +scontrol .* printed", str(message.value))


def test_an_accounting_that_cannot_be_read_is_reported_as_such() -> None:
    def garbled(argv: Sequence[str]) -> str:
        return answer(argv).replace("node=", "node=x") if argv[0] == "sacctmgr" else answer(argv)

    assert str(read_offer(garbled).accounting).startswith("the answer of the accounting cannot be read")
