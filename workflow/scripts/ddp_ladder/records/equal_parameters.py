"""Check that all ranks hold equal parameters at the end, and the reason if not. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddp_ladder.plan.plan import RunSpec
from ddp_ladder.records.diagnosis import Diagnosis, Table, diagnose, first_names, listed
from ddp_ladder.records.raw_models import RankEnd, RankParameters

EQUALLY_MANY = (
    "let every rank make the same number of steps: no break or return on a condition that holds on one rank only, and "
    "equally many batches on all (DistributedSampler pads; a stream has to be cut to the same length on each rank)"
)


def parameters_agree(spec: RunSpec, ends: Sequence[RankEnd]) -> Diagnosis:
    """Check that all replicas end with the same bits, as replicas that were trained together do."""
    checksums = [end.parameters.checksum for end in ends if end.parameters]
    sharded = (
        bool(ends)
        and len(checksums) == spec.world_size
        and all(end.parameters and end.parameters.sharded for end in ends)
    )
    if sharded:
        return _shards(ends)
    measured = f"{len(set(checksums))} distinct on {len(checksums)} ranks"
    wanted = f"1 distinct on {spec.world_size} ranks"
    ok = len(checksums) == spec.world_size and len(set(checksums)) == 1
    return diagnose("equal parameters", ok, measured, wanted, *_why_apart(ends, measured, wanted))


def _shards(ends: Sequence[RankEnd]) -> Diagnosis:
    """Check sharded models (FSDP, tensor parallelism): only parameters marked as replicated are compared."""
    which = _which_differ({end.rank: _replicated(end.parameters) for end in ends if end.parameters})
    return diagnose(
        "equal parameters",
        not which,
        f"sharded over {len(ends)} ranks{which}",
        "shards on every rank, and what is replicated equal",
        "the ranks ended with different parameters",
        f"of what is replicated, not sharded{which}",
        "a replicated DTensor stays the same only where all ranks of its mesh step it by the same gradient: see that "
        "they compute it from the same samples, or that it is averaged over them",
    )


def _replicated(parameters: RankParameters) -> Table:
    tensors = parameters.tensors
    return [tensors[place] for place in parameters.replicated if place < len(tensors)]


def _why_apart(ends: Sequence[RankEnd], measured: str, wanted: str) -> tuple[str, str, str]:
    """Return verdict, why and next of replicas that differ."""
    without = [end.rank for end in ends if not end.parameters]
    if without or not ends:
        why = f"no trained parameters were seen on {f'rank {listed(without)}' if without else 'any rank'}"
        return "equal parameters", why, "see not_measured in the end records of these ranks, in ranks/"
    tables = {end.rank: end.parameters.tensors for end in ends if end.parameters}
    which = f"{measured}, wanted {wanted}{_which_differ(tables)}"
    if not any(end.ddp for end in ends):
        return (
            "the model is not wrapped in DistributedDataParallel",
            f"each rank trained a model of its own: {which}",
            "after torch.distributed.init_process_group(), wrap the model, before the optimizer is made, and train "
            "through the wrapper: model = DistributedDataParallel(model)",
        )
    return (
        "the ranks ended with different parameters",
        which,
        "see what is done to these parameters outside DistributedDataParallel's backward pass: set to be ignored by "
        "it, created or written after wrapping, trained through model.module, or stepped inside no_sync",
    )


def _which_differ(tables: Mapping[int, Table]) -> str:
    """Return ``; rank 1 differs from rank 0 in 2 of 10: 4.weight, 4.bias``; empty if none differs or it is unknown."""
    first = min(tables)
    for rank, table in sorted(tables.items()):
        if table == tables[first]:
            continue
        names = [here[0] for here, there in zip(table, tables[first], strict=False) if here != there]
        if names:
            return f"; rank {rank} differs from rank {first} in {len(names)} of {len(table)}: {first_names(names)}"
        return f"; rank {rank} has {len(table)} parameters, rank {first} has {len(tables[first])}"
    return ""
