"""Plans against what a real Slurm offered (tests/unit/slurm_output), and against small changes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ddp_ladder.common.messages import Problem
from ddp_ladder.plan.plan import make_plan
from ddp_ladder.preflight.check import PreflightResult, check_jobs
from ddp_ladder.settings.cluster_keys import Node, Slurm
from ddp_ladder.settings.loading import load_settings
from ddp_ladder.settings.models import Settings, Stage
from ddp_ladder.settings.sources import CLUSTER, CONFIG
from ddp_ladder.settings.terms import Scale
from ddp_ladder.slurm.offer import Accounting, Association, Limits, Offer, Partition, read_offer
from slurm_captured import answer

SHIPPED = load_settings(CONFIG, CLUSTER)
# root may do what others may not.
OFFER = replace(read_offer(answer), user="root", groups=frozenset({"users"}))


def settings(scales: str = "2x4", runtime_min: int = 20, stage: dict[str, Any] | None = None, **slurm: Any) -> Settings:
    """One stage of the given scales, on nodes as those of the captured cluster."""
    node = Node(gpus=4, device="cuda", cpus=8, gres="gpu:a100", memory_mb=8000)
    one = Stage(
        "stage3",
        tuple(Scale.parse(scale) for scale in scales.split()),
        runtime_min,
        SHIPPED.experiment.stages[0].gate,
        Slurm(**(stage or {})),
    )
    return Settings(
        replace(SHIPPED.experiment, stages=(one,)),
        replace(SHIPPED.site, name="test", node=node, slurm=Slurm(**{"partition": "gpu", **slurm})),
    )


def verdict(wanted: Settings, offer: Offer = OFFER) -> PreflightResult:
    return check_jobs(make_plan(wanted).jobs, wanted, offer)


def the_problem(wanted: Settings, offer: Offer = OFFER) -> Problem:
    """The only one: a mistake is reported once."""
    (problem,) = verdict(wanted, offer).wrong
    assert problem.allowed
    assert problem.next
    return problem


def with_node(node: Node, wanted: Settings) -> Settings:
    return replace(wanted, site=replace(wanted.site, node=node))


def accounting(**changes: Any) -> Offer:
    assert isinstance(OFFER.accounting, Accounting)
    return replace(OFFER, accounting=replace(OFFER.accounting, **changes))


def partition(name: str, **changes: Any) -> Offer:
    return replace(OFFER, partitions={**OFFER.partitions, name: replace(OFFER.partitions[name], **changes)})


def test_a_plan_that_fits_has_nothing_wrong() -> None:
    assert verdict(settings("1x1 2x4 3x4")) == PreflightResult((), (), ())


# Partition


def test_unknown_partition() -> None:
    problem = the_problem(settings(partition="gpus"))
    assert problem.where == "config/cluster.yaml: slurm.partition"
    assert problem.found == "gpus"
    assert problem.allowed == "closed, debug, denying, gpu, idle, picky, rooted"
    assert problem.next == 'did you mean "gpu"?'


def test_a_stages_own_value_is_named_where_it_stands() -> None:
    problem = the_problem(settings(stage={"partition": "gpus"}))
    assert problem.where == "config/config.yaml: stages.stage3.slurm.partition"


def test_no_partition_is_the_default_one() -> None:
    assert verdict(settings(partition=None)).wrong == ()
    without = partition("gpu", default=False)
    problem = the_problem(settings(partition=None), without)
    assert problem.what == "this Slurm has no default partition"
    assert "gpu" in str(problem.allowed)


@pytest.mark.parametrize(("name", "state"), [("closed", "DOWN"), ("idle", "INACTIVE")])
def test_partition_that_is_closed(name: str, state: str) -> None:
    problem = verdict(settings("1x4", partition=name)).wrong[0]
    assert problem.found == f"state {state}"
    assert "gpu" in str(problem.allowed)


def test_partition_for_others() -> None:
    someone = replace(OFFER, user="ada")
    assert "for root alone" in the_problem(settings("1x4", partition="rooted"), someone).what
    grouped = partition("gpu", allow_groups=("vip",))
    problem = the_problem(settings(), replace(grouped, user="ada"))
    assert (problem.found, problem.allowed) == ("ada is in none of them", "vip")
    assert verdict(settings(), replace(grouped, user="ada", groups=frozenset({"vip"}))).wrong == ()


def test_of_several_partitions_one_that_fits_is_enough() -> None:
    assert verdict(settings("3x4", partition="debug,gpu")).wrong == ()


def test_of_several_partitions_each_tells_why_it_does_not_fit() -> None:
    problem = the_problem(settings("4x4", partition="debug,closed"))
    assert problem.where == "config/cluster.yaml: slurm.partition"
    assert "debug: more nodes than the partition debug has (4x4: 4 nodes)" in str(problem.found)
    assert "closed: the partition closed starts no jobs now (state DOWN)" in str(problem.found)


def test_where_the_site_wants_all_partitions_to_fit() -> None:
    strict = replace(OFFER, all_partitions_must_fit=True)
    problem = the_problem(settings("3x4", partition="debug,gpu"), strict)
    assert "not every partition" in problem.what
    assert verdict(settings("2x4", partition="debug,gpu"), strict).wrong == ()


def test_an_unknown_partition_of_a_list_is_wrong_even_if_another_fits() -> None:
    assert the_problem(settings(partition="gpu,gpux")).found == "gpux"


# Shape


def test_one_message_for_all_scales_with_too_many_nodes() -> None:
    problem = the_problem(settings("2x4 3x4 4x4", partition="debug"))
    assert problem.where == "config/config.yaml: stages.stage3.scales"
    assert problem.found == "3x4: 3 nodes; 4x4: 4 nodes"
    assert problem.allowed == "up to 2 nodes: node1, node2"


def test_the_partitions_own_limit_of_nodes() -> None:
    problem = the_problem(settings("3x4"), partition("gpu", max_nodes=2))
    assert problem.what == "more nodes than the partition gpu allows per job"
    assert problem.allowed == "up to 2 nodes"


def test_more_gpus_than_a_node_has() -> None:
    node = Node(gpus=8, device="cuda", cpus=8, gres="gpu:a100", memory_mb=8000)
    problem = the_problem(with_node(node, settings("2x8")))
    assert problem.where == "config/cluster.yaml: node.gpus"
    assert problem.found == "2x8: gpu:a100:8 per node"
    assert problem.allowed == "up to gpu:a100:4 per node"


def test_gpus_of_a_type_that_is_not_there() -> None:
    node = Node(gpus=4, device="cuda", cpus=8, gres="gpu:a10", memory_mb=8000)
    problem = the_problem(with_node(node, settings()))
    assert problem.where == "config/cluster.yaml: node.gres"
    assert (problem.allowed, problem.next) == ("gpu, gpu:a100", 'did you mean "gpu:a100"?')


def test_gpus_of_any_type() -> None:
    node = Node(gpus=4, device="cuda", cpus=8, gres="gpu", memory_mb=8000)
    assert verdict(with_node(node, settings())).wrong == ()


def test_gpus_where_there_are_none() -> None:
    bare = replace(OFFER, nodes=tuple(replace(node, gpus={}) for node in OFFER.nodes))
    assert the_problem(settings(), bare).allowed == "none: it has no GPUs"


def test_more_cores_than_a_node_has() -> None:
    node = Node(gpus=4, device="cuda", cpus=16, gres="gpu:a100", memory_mb=8000)
    problem = the_problem(with_node(node, settings("2x4")))
    assert problem.where == "config/cluster.yaml: node.cpus"
    assert (problem.found, problem.allowed) == ("2x4: 16 cores", "up to 8 cores")
    assert "node.cpus: 8" in str(problem.next)


def test_more_memory_than_a_node_has() -> None:
    node = Node(gpus=4, device="cuda", cpus=8, gres="gpu:a100", memory_mb=64000)
    problem = the_problem(with_node(node, settings("2x2")))
    assert problem.where == "config/cluster.yaml: node.memory_mb"
    assert (problem.found, problem.allowed) == ("2x2: 32000 MB", "up to 16000 MB")
    assert "node.memory_mb: 32000" in str(problem.next)


def test_the_partitions_own_limits_of_a_node() -> None:
    picky = partition("picky", qos=None)
    wanted = settings("1x4", partition="picky")
    problem = the_problem(wanted, picky)
    assert problem.what == "more cores per node than the partition picky allows"
    assert problem.allowed == "up to 6 cores"
    memory = with_node(Node(gpus=4, device="cuda", cpus=6, gres="gpu:a100", memory_mb=9000), wanted)
    assert the_problem(memory, picky).allowed == "up to 8000 MB"


def test_runtime_over_the_partitions() -> None:
    problem = the_problem(settings("1x4", 31, partition="debug"))
    assert problem.where == "config/config.yaml: stages.stage3.runtime"
    assert (problem.found, problem.allowed) == ("31 min", "up to 30 min")
    assert verdict(settings("1x4", 30, partition="debug")).wrong == ()


# Which nodes


def test_too_few_nodes_with_the_features() -> None:
    problem = the_problem(settings("2x4", constraint="ib&bigmem"))
    assert problem.where == "config/cluster.yaml: slurm.constraint"
    assert problem.allowed == "up to 1 node: node1"
    assert verdict(settings("2x4", constraint="ib|bigmem")).wrong == ()
    assert verdict(settings("2x4", constraint="[ib*2&bigmem]")).wrong == ()
    assert the_problem(settings("2x4", constraint="infiniband")).allowed == "up to 0 nodes"


def test_too_few_nodes_without_the_excluded() -> None:
    problem = the_problem(settings("2x4", partition="debug", exclude="node[2-3]"))
    assert problem.where == "config/cluster.yaml: slurm.exclude"
    assert problem.allowed == "up to 1 node: node1"


def test_too_few_nodes_that_are_large_enough() -> None:
    small = replace(
        OFFER, nodes=tuple(replace(node, gpus={"a100": 4 if node.name == "node1" else 2}) for node in OFFER.nodes)
    )
    problem = the_problem(settings("2x4"), small)
    assert problem.where == "config/config.yaml: stages.stage3.scales"
    assert problem.allowed == "up to 1 node: node1"
    few_cores = replace(
        OFFER, nodes=tuple(replace(node, cpus=8 if node.name == "node1" else 6) for node in OFFER.nodes)
    )
    assert the_problem(settings("2x4"), few_cores).allowed == "up to 1 node: node1"


def test_nodes_that_do_not_exist() -> None:
    problem = the_problem(settings(exclude="node07"))
    assert (problem.where, problem.found) == ("config/cluster.yaml: slurm.exclude", "node07")
    assert the_problem(settings(nodelist="nod1")).next == 'did you mean "node1"?'


def test_nodes_that_a_job_must_have_but_cannot_get() -> None:
    problem = the_problem(settings("2x4", partition="debug", nodelist="node[1,4]"))
    assert (problem.where, problem.found) == ("config/cluster.yaml: slurm.nodelist", "node4")
    assert "sbatch requires all of them" in the_problem(settings("2x4", nodelist="node[1-3]")).what


def test_nodes_that_are_down_make_jobs_wait() -> None:
    found = verdict(settings("4x4"))
    assert found.wrong == ()
    (waiting,) = found.waits
    assert waiting.found == "4x4: 4 nodes"
    assert waiting.allowed == (
        "3 nodes now; not up: node3 (IDLE+MAINTENANCE+RESERVED), node5 (IDLE+DRAIN), node6 (DOWN+NOT_RESPONDING)"
    )


def test_jobs_do_not_wait_where_another_partition_of_the_list_is_up() -> None:
    nodes = tuple(replace(node, partitions=(*node.partitions, f"only-{node.name}")) for node in OFFER.nodes)
    single = {f"only-{node.name}": Partition(f"only-{node.name}") for node in nodes}
    offer = replace(OFFER, nodes=nodes, partitions={**OFFER.partitions, **single})
    assert len(verdict(settings("1x4", partition="only-node6"), offer).waits) == 1
    assert verdict(settings("1x4", partition="only-node6,only-node1"), offer) == PreflightResult((), (), ())


# Reservation


def test_unknown_reservation() -> None:
    problem = the_problem(settings("1x4", reservation="cours"))
    assert (problem.where, problem.allowed) == ("config/cluster.yaml: slurm.reservation", "course, later")
    none = replace(OFFER, reservations={})
    assert the_problem(settings("1x4", reservation="cours"), none).allowed == "none: this Slurm has no reservations"


def test_reservation_of_others_and_one_that_is_to_come() -> None:
    assert "for others" in the_problem(settings("1x4", reservation="course"), replace(OFFER, user="ada")).what
    assert verdict(settings("1x4", reservation="course")) == PreflightResult((), (), ())
    found = verdict(settings("1x4", reservation="later"))
    assert found.wrong == ()
    assert "has not begun" in found.waits[0].what


def test_more_nodes_than_the_reservation_has() -> None:
    problem = the_problem(settings("2x4", reservation="course"))
    assert problem.where == "config/cluster.yaml: slurm.reservation"
    assert problem.allowed == "up to 1 node: node3"


# Accounts, QOS and limits


def test_account_that_the_user_does_not_have() -> None:
    problem = the_problem(settings(account="projekt"))
    assert problem.where == "config/cluster.yaml: slurm.account"
    assert (problem.allowed, problem.next) == ("project, root", 'did you mean "project"?')
    nobody = accounting(associations=())
    assert the_problem(settings(account="project"), nobody).allowed == "none: this user has no account on this cluster"


def test_account_that_the_partition_does_not_take() -> None:
    problem = the_problem(settings("1x4", partition="denying"))
    assert (problem.where, problem.allowed) == ("config/cluster.yaml: slurm.account", "any but project")
    limited = partition("gpu", allow_accounts=("other",))
    assert the_problem(settings(), limited).allowed == "other"


def test_qos_that_does_not_exist_or_is_not_the_accounts() -> None:
    unknown = the_problem(settings(qos="smal"))
    assert (unknown.where, unknown.what) == ("config/cluster.yaml: slurm.qos", "there is no such QOS")
    assert unknown.next == 'did you mean "small"?'
    foreign = the_problem(settings(qos="huge"))
    assert (foreign.what, foreign.allowed) == ("the account project may not use this QOS", "normal, small")


def test_qos_that_the_partition_does_not_take() -> None:
    problems = verdict(settings("1x1", 5, partition="picky", qos="small")).wrong
    assert [problem.what for problem in problems] == ["the partition picky is closed for this QOS"]
    assert problems[0].allowed == "normal"


def test_qos_over_its_limits() -> None:
    found = {problem.where.rpartition(".")[2]: problem for problem in verdict(settings("1x4", 20, qos="small")).wrong}
    assert found["runtime"].allowed == "up to 10 min"
    assert found["scales"].what == "more GPUs (gres/gpu) than the QOS small allows per job"
    assert (found["scales"].found, found["scales"].allowed) == ("1x4: 4", "up to 2")
    assert the_problem(settings("2x1", 5, qos="small")).allowed == "up to 1"
    assert verdict(settings("1x2", 10, qos="small")).wrong == ()


def test_limits_of_the_partitions_qos() -> None:
    wanted = settings("1x1", 11, partition="picky")
    assert the_problem(wanted).what == "longer than the QOS small allows"


def test_the_qos_limit_counts_in_place_of_the_accounts() -> None:
    """As Slurm does it: the user's association allows 20 hours, the partition 24."""
    assert the_problem(settings("1x4", 21 * 60)).what == "longer than your share of the account project allows"
    generous = accounting(qos={"normal": Limits(max_wall_min=24 * 60)})
    assert verdict(settings("1x4", 21 * 60), generous).wrong == ()


def test_limits_of_the_account_and_of_all_jobs_together() -> None:
    problem = the_problem(settings("5x4"))
    assert problem.what == "more GPUs (gres/gpu) than the account project allows all its jobs together"
    assert (problem.found, problem.allowed) == ("5x4: 20", "up to 16")
    assert "more nodes than your share" in the_problem(settings("6x1")).what


def test_limits_of_the_account_above() -> None:
    above = accounting(
        accounts={
            "project": Association("project", parent="faculty"),
            "faculty": Association("faculty", limits=Limits(per_group={"gres/gpu": 7})),
        }
    )
    assert the_problem(settings("2x4"), above).what.endswith("than the account faculty allows all its jobs together")


def test_an_association_with_one_partition_counts_there_alone() -> None:
    narrow = Association("project", "root", "debug", qos=("normal",), limits=Limits(max_wall_min=5))
    assert isinstance(OFFER.accounting, Accounting)
    both = accounting(associations=(*OFFER.accounting.associations, narrow))
    assert verdict(settings("1x4"), both).wrong == ()
    assert the_problem(settings("1x4", partition="debug"), both).allowed == "up to 5 min"


@pytest.mark.parametrize(
    ("limits", "what", "allowed"),
    [
        (Limits(per_user={"node": 1}), "more nodes than the QOS normal allows per user", "up to 1"),
        (Limits(per_account={"mem": 9000}), "more MB of memory than the QOS normal allows per account", "up to 9000"),
        (Limits(per_job={"cpu": 15}), "more cores than the QOS normal allows per job", "up to 15"),
        (
            Limits(minutes_per_job={"gres/gpu": 159}),
            "more than the QOS normal allows per job, in minutes times GPUs (gres/gpu)",
            "up to 159",
        ),
    ],
)
def test_each_kind_of_limit(limits: Limits, what: str, allowed: str) -> None:
    problem = the_problem(settings("2x4", 20), accounting(qos={"normal": limits}))
    assert (problem.what, problem.allowed) == (what, allowed)


def test_an_account_above_the_others_that_points_to_itself_is_no_endless_loop() -> None:
    loop = accounting(accounts={"project": Association("project", parent="project")})
    assert verdict(settings(), loop).wrong == ()


# What cannot be checked


def test_without_accounting_its_checks_are_reported_as_left_out() -> None:
    bare = replace(OFFER, accounting="this Slurm has no accounting")
    found = verdict(settings("1x4", account="nobody", qos="none"), bare)
    assert found.wrong == ()
    assert found.not_checked == ("account, QOS and their limits: this Slurm has no accounting",)


def test_what_is_not_enforced_is_not_checked() -> None:
    lax = accounting(enforced=frozenset({"none"}))
    found = verdict(settings("1x4", account="nobody", qos="none"), lax)
    assert found.wrong == ()
    assert len(found.not_checked) == 3
