"""Checks for steps, variants, scales, thresholds and modes that contradict each other."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ddp_ladder.common.messages import Problem, did_you_mean
from ddp_ladder.settings.checks.given import Given
from ddp_ladder.settings.compared_fields import MAY_DIFFER, REASONS
from ddp_ladder.settings.config_keys import GateThresholds
from ddp_ladder.settings.models import Stage, Variant
from ddp_ladder.settings.strict_yaml import shown
from ddp_ladder.settings.terms import PLAIN_VARIANT, REFERENCE_VARIANT, Scale

_BATCH_NAMES = {"batch_per_gpu", "global_batch"}


def fewer_steps_than_are_measured(given: Given) -> Iterator[Problem]:
    """Refuse a max_steps below warm-up and measured steps."""
    measure = given.experiment.measure
    device = given.site.node.device
    warmup_steps = measure.warmup_steps_on(device)
    origin = f" (null, with device {device})" if measure.warmup_steps is None else ""
    needed = warmup_steps + measure.min_steps
    if measure.max_steps is not None and measure.max_steps < needed:
        yield Problem(
            where=given.config.where("measure", "max_steps"),
            what="runs would end before enough steps are measured",
            found=f"max_steps {measure.max_steps}, warmup_steps {warmup_steps}{origin}, min_steps {measure.min_steps}",
            allowed=f"at least warmup_steps + min_steps = {needed}, or null",
            next=f"set max_steps: {needed} or more, or lower min_steps",
        )


def profile_without_an_end(given: Given) -> Iterator[Problem]:
    """Refuse profiled steps if nothing shows where the measured steps end, or that they are not in the figures."""
    measure = given.experiment.measure
    if not measure.profile_steps:
        return
    where = given.config.where("measure", "profile_steps")
    if measure.max_steps is None and measure.max_seconds is None:
        yield Problem(
            where=where,
            what="the profiled steps follow the measured ones, and no limit says where those end",
            found=f"profile_steps {measure.profile_steps}, max_steps null, max_seconds null",
            allowed="profile_steps with max_steps or max_seconds",
            next="set measure.max_steps to fewer steps than the script makes, or profile_steps: 0",
        )
    if given.workload.throughput_regex is not None:
        yield Problem(
            where=where,
            what="rates that the script prints cannot be told apart from those of profiled steps",
            found=f"profile_steps {measure.profile_steps} and workload.throughput_regex",
            allowed="one of both",
            next="set profile_steps: 0, or workload.throughput_regex: null",
        )


def one_process_as_the_reference(given: Given) -> Iterator[Problem]:
    """Refuse launcher python for the variant that the gates judge."""
    for variant in given.experiment.variants:
        if variant.launcher == "python" and variant.name == REFERENCE_VARIANT:
            yield Problem(
                where=given.config.where("variants", variant.name, "launcher"),
                what="launcher python cannot use several nodes, and the gates judge this variant",
                found="python",
                allowed="torchrun or srun",
                next="use it in another variant, such as dataparallel: {launcher: python, args: [...]}",
            )


def reserved_variant_names(given: Given) -> Iterator[Problem]:
    """Refuse variant names that ddp-ladder uses itself."""
    if any(variant.name == PLAIN_VARIANT for variant in given.experiment.variants):
        yield Problem(
            where=given.config.where("variants", PLAIN_VARIANT),
            what="this name is reserved for the script without a launcher (measure.plain_baseline)",
            found=PLAIN_VARIANT,
            allowed=f"any name but {PLAIN_VARIANT}",
            next="give the variant another name",
        )


def scales_outside_their_stage(given: Given) -> Iterator[Problem]:
    """Refuse scales of another stage's shape, larger than a node, or named twice."""
    for stage in given.experiment.stages:
        if stage.name == "stage1" and len(stage.scales) > 1:
            yield _stage1_problem(given, stage)
            continue
        for index, scale in enumerate(stage.scales):
            problem = (
                _shape_problem(given, stage, index, scale)
                or _size_problem(given, stage, index, scale)
                or _not_above_the_first(given, stage, index, scale)
                or _repeated_scale(given, stage, index, scale)
            )
            if problem:
                yield problem


def _stage1_problem(given: Given, stage: Stage) -> Problem:
    return Problem(
        where=given.config.where("stages", "stage1", "scales"),
        what="stage 1 is one scale, the baseline of every efficiency",
        found=_scale_list(stage.scales),
        allowed="[1x1], or the smallest scale that the training fits",
        next=f"set scales: [{min(stage.scales, key=_size)}]; one node goes into stage2, several nodes into stage3",
    )


def _shape_problem(given: Given, stage: Stage, index: int, scale: Scale) -> Problem | None:
    """Return the problem of a scale that belongs to another stage. So no scale can be in two stages."""
    where = given.config.where("stages", stage.name, "scales", index)
    if stage.name == "stage2" and (scale.nodes != 1 or scale.gpus_per_node < 2):
        target = "stage3" if scale.nodes > 1 else "stage1"
        return Problem(
            where=where,
            what="stage 2 is one node with several GPUs",
            found=str(scale),
            allowed="1x2, 1x3, ...: one node, two or more GPUs",
            next=_moved(given, scale, target),
        )
    if stage.name == "stage3" and scale.nodes < 2:
        return Problem(
            where=where,
            what="stage 3 is several nodes",
            found=str(scale),
            allowed=f"2x{scale.gpus_per_node}, 3x{scale.gpus_per_node}, ...: two or more nodes",
            next=_moved(given, scale, "stage2"),
        )
    return None


def _moved(given: Given, scale: Scale, target: str) -> str:
    """Return where a scale belongs: to a later stage only if it has more GPUs than the first scale."""
    first = given.experiment.first_scale
    if scale.world_size > first.world_size:
        return f"move {scale} to stages.{target}"
    return f"remove {scale}: " + ("stage1 measures it" if scale == first else f"the ladder starts at {first}")


def _size_problem(given: Given, stage: Stage, index: int, scale: Scale) -> Problem | None:
    gpus = given.site.node.gpus
    if scale.gpus_per_node <= gpus:
        return None
    place = given.cluster.where("node", "gpus")
    advice = f"use at most {gpus} GPUs per node, or correct node.gpus if the nodes have more"
    if stage.name == "stage2" and gpus == 1:
        advice = "remove stages.stage2: a site with one GPU per node has none"
    return Problem(
        where=given.config.where("stages", stage.name, "scales", index),
        what=f"the scale asks for {scale.gpus_per_node} GPUs per node, the site has {gpus}",
        found=str(scale),
        allowed=f"at most {gpus} per node ({place})",
        next=advice,
    )


def _not_above_the_first(given: Given, stage: Stage, index: int, scale: Scale) -> Problem | None:
    """Return the problem of a scale that is no larger than that of stage 1, the baseline."""
    first = given.experiment.first_scale
    if stage.name == "stage1" or scale.world_size > first.world_size or len(given.experiment.stages[0].scales) > 1:
        return None
    gpus = "1 GPU" if first.world_size == 1 else f"{first.world_size} GPUs"
    return Problem(
        where=given.config.where("stages", stage.name, "scales", index),
        what=f"the ladder starts at {first} with {gpus}, and climbs from there",
        found=str(scale),
        allowed=f"scales with more than {gpus} ({given.config.where('stages', 'stage1', 'scales')})",
        next=_moved(given, scale, stage.name),
    )


def _size(scale: Scale) -> tuple[int, int]:
    return scale.world_size, scale.nodes


def _repeated_scale(given: Given, stage: Stage, index: int, scale: Scale) -> Problem | None:
    if scale not in stage.scales[:index]:
        return None
    return Problem(
        where=given.config.where("stages", stage.name, "scales", index),
        what="a scale twice",
        found=_scale_list(stage.scales),
        allowed="each scale once",
        next=f"remove one {scale}; to measure it more often raise repeats",
    )


def thresholds_that_judge_nothing(given: Given) -> Iterator[Problem]:
    """Refuse thresholds that have no effect."""
    for stage in given.experiment.stages:
        if stage.name == "stage1" and stage.gate.min_efficiency is not None:
            yield Problem(
                where=given.config.where("stages", "stage1", "gate", "min_efficiency"),
                what="stage 1 is the baseline of the efficiency and cannot be judged by it",
                found=str(stage.gate.min_efficiency),
                allowed="min_samples_per_s and max_data_wait_fraction",
                next="remove it here; set it in stage2 and stage3",
            )
        if stage.gate == GateThresholds(max_efficiency=stage.gate.max_efficiency, certain=True):
            yield Problem(
                where=given.config.where("stages", stage.name, "gate", "certain"),
                what="certain has no effect without a threshold",
                found="certain: true",
                allowed="certain together with min_efficiency, min_samples_per_s or max_data_wait_fraction",
                next="set a threshold, or remove certain",
            )


def fields_that_may_not_differ(given: Given) -> Iterator[Problem]:
    """Refuse fields that are not compared, and fields that may never differ."""
    for index, name in enumerate(given.experiment.may_differ):
        if name in MAY_DIFFER:
            continue
        yield Problem(
            where=given.config.where("fingerprint", "may_differ", index),
            what=f"{name} may never differ: {REASONS[name]}"
            if name in REASONS
            else "not a field that is compared between runs",
            found=shown(name),
            allowed=", ".join(MAY_DIFFER),
            next=did_you_mean(name, MAY_DIFFER)
            or "remove it; the note of a scale that is not comparable names the fields that differ",
        )


def batch_that_strong_mode_cannot_divide(given: Given) -> Iterator[Problem]:
    """Refuse strong mode with a global batch that a scale does not divide, or without a batch placeholder."""
    if "strong" not in given.experiment.modes:
        return
    yield from _indivisible_batch(given)
    yield from _batch_without_placeholder(given)


def _indivisible_batch(given: Given) -> Iterator[Problem]:
    batch, first = given.workload.batch_per_gpu, given.experiment.first_scale.world_size
    scales = [scale for stage in given.experiment.stages for scale in stage.scales]
    wrong = [scale for scale in scales if batch * first % scale.world_size]
    if not wrong:
        return
    total = math.lcm(*(scale.world_size for scale in scales))
    multiple = total // math.gcd(total, first)
    lower, upper = batch // multiple * multiple, -(-batch // multiple) * multiple
    better = f"{lower} or {upper}" if lower else str(upper)
    sizes = ", ".join(f"{scale} ({scale.world_size} GPUs)" for scale in wrong)
    yield Problem(
        where=given.config.where("workload", "batch_per_gpu"),
        what="strong mode cannot divide the global batch evenly",
        found=f"a global batch of {batch * first} over {sizes}",
        allowed=f"a multiple of {multiple}, which all scales divide",
        next=f"set batch_per_gpu: {better}, or remove the scale, or strong from modes",
    )


def _batch_without_placeholder(given: Given) -> Iterator[Problem]:
    without = [variant.name for variant in given.experiment.variants if not _uses_batch(given, variant)]
    if without:
        yield Problem(
            where=given.config.where("workload", "args"),
            what="strong mode changes the batch per GPU, but nothing passes it to the script",
            found=f"no batch placeholder in the arguments and the environment of {', '.join(without)}",
            allowed="{batch_per_gpu} or {global_batch} in args or env of the workload or the variant",
            next='add for example --batch-size, "{batch_per_gpu}", or remove strong from modes',
        )


def _uses_batch(given: Given, variant: Variant) -> bool:
    # A plain search is enough, because malformed templates are reported elsewhere.
    texts = (*given.workload.args, *variant.args, *given.workload.env.values(), *variant.env.values())
    text = "\n".join(texts)
    return any(f"{{{name}}}" in text for name in _BATCH_NAMES)


def _scale_list(scales: tuple[Scale, ...]) -> str:
    return f"[{', '.join(str(scale) for scale in scales)}]"
