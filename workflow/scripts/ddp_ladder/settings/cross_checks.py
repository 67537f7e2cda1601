"""Checks that a schema cannot make: settings that contradict each other or name missing files."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ddp_ladder.common.messages import Problem
from ddp_ladder.settings.checks import ladder, secrets, site, templates, workload
from ddp_ladder.settings.checks.given import Given
from ddp_ladder.settings.models import Settings
from ddp_ladder.settings.strict_yaml import Document

CHECKS: tuple[Callable[[Given], Iterator[Problem]], ...] = (
    workload.results_inside_data_dir,
    workload.script_that_cannot_start,
    workload.preparation_that_cannot_start,
    workload.unusable_directory,
    templates.placeholders_without_a_value,
    templates.samples_that_are_no_whole_number,
    workload.regex_without_one_group,
    ladder.fewer_steps_than_are_measured,
    ladder.profile_without_an_end,
    ladder.one_process_as_the_reference,
    ladder.reserved_variant_names,
    ladder.scales_outside_their_stage,
    ladder.thresholds_that_judge_nothing,
    ladder.fields_that_may_not_differ,
    ladder.batch_that_strong_mode_cannot_divide,
    site.variables_that_cannot_be_set,
    secrets.secrets_that_differ_between_variants,
    secrets.secrets_with_placeholders,
    site.options_that_sbatch_must_not_get,
    site.cores_and_gpus_that_contradict,
    site.python_that_is_not_there,
    site.container_that_hides_the_run,
    site.names_that_no_node_has,
    site.nccl_without_gpus,
)
"""All checks, in the order of their messages."""


def cross_field_problems(settings: Settings, config: Document, cluster: Document) -> list[Problem]:
    """Return every conflict between settings, or between a setting and this machine's files.

    config, cluster: the documents that the settings were read from; they give the line of each key.
    """
    given = Given(settings.experiment, settings.site, config, cluster)
    return [problem for check in CHECKS for problem in check(given)]
