"""Checks across keys, and of this machine's files: settings that contradict each other or name what is not there."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product, takewhile
from pathlib import Path, PurePosixPath

from ddp_ladder.common.files import places
from ddp_ladder.common.messages import Problem, did_you_mean
from ddp_ladder.common.redaction import is_secret_name
from ddp_ladder.settings import placeholders
from ddp_ladder.settings.keys import Settings
from ddp_ladder.settings.placeholders import expand, is_arithmetic, literal, whole_number
from ddp_ladder.settings.terms import PLAIN_VARIANT, REFERENCE_VARIANT, Scale, batches
from ddp_ladder.settings.yaml import Document, KeyPath, shown

# The launchers and ddp-ladder set these for each process; another value would break the process group.
OWN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
OWN_PREFIX = "DDP_LADDER_"
_MODULE = re.compile(r"-m [A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_CLEARING_OPTIONS = ("--cleanenv", "-e", "--containall", "-C")  # of apptainer and singularity exec
_COUNTS = ("batch_per_gpu", "global_batch", "world_size", "nodes", "gpus_per_node")
_BATCH = re.compile(r"\{(?:batch_per_gpu|global_batch)\}")

# Options of sbatch that slurm.extra may not hold, as they would break the ladder: those that keys set, and its own.
_SET_BY_KEYS = {
    **{name: f"slurm.{name}" for name in ("account", "partition", "qos", "constraint", "reservation", "nodelist")},
    "exclude": "slurm.exclude",
    "gres": "node.gres",
    "mem": "node.memory_mb",
    "cpus-per-task": "node.cpus",
    "time": "runtime of the stage in config.yaml",
    "export": "network.env, or workload.env in config.yaml",
    **dict.fromkeys(("nodes", "gpus", "ntasks", "tasks-per-node"), "the scales of a stage in config.yaml"),
}
_OWN_OPTIONS = (
    "output", "error", "job-name", "comment", "parsable", "clusters", "chdir", "wrap", "array", "wait", "test-only",
    "requeue", "no-requeue",
)  # fmt: skip


def conflicts(settings: Settings) -> Iterator[Problem]:
    """Yield every conflict between settings, or between a setting and this machine's files."""
    for check in (
        _results, _script, _preparation, _directory, _texts_with_placeholders, _samples_per_step, _throughput_regex,
        _steps, _variant_names, _scales, _thresholds, _strong_mode, _variables, _secrets, _sbatch_options, _cores,
        _python, _container, _nccl,
    ):  # fmt: skip
        yield from check(settings)


# The workload


def _results(settings: Settings) -> Iterator[Problem]:
    results, data = settings.experiment.results, settings.experiment.workload.data_dir
    if data is not None and PurePosixPath(results).is_relative_to(data):
        what, found = "the results would lie in the data directory", f"results {results}, workload.data_dir {data}"
        allowed = "a directory outside workload.data_dir"
        yield Problem(settings.config.where("results"), what, found, allowed, "for example results: results")


def _script(settings: Settings) -> Iterator[Problem]:
    script = settings.experiment.workload.script
    where = settings.config.where("workload", "script")
    if not script.startswith("-"):
        yield from _file_problems(script, where)
    elif not _MODULE.fullmatch(script):
        what, allowed = "neither a file nor a module", 'a file, or "-m package.module"'
        yield Problem(where, what, shown(script), allowed, "write -m, one space and the module's name")


def _preparation(settings: Settings) -> Iterator[Problem]:
    workload = settings.experiment.workload
    if workload.prepare is None:
        return
    yield from _file_problems(workload.prepare[0], settings.config.where("workload", "prepare", 0))
    if workload.data_dir is None:
        what, found = "there is no directory for the prepared data", "workload.data_dir: null"
        advice = "set workload.data_dir, such as data_dir: data/digits, or set prepare: null"
        where = settings.config.where("workload", "prepare")
        yield Problem(where, what, found, "workload.prepare together with workload.data_dir", advice)


def _file_problems(file: str, where: str) -> Iterator[Problem]:
    if "{" in file or "}" in file:
        what, allowed = "a brace in a script's name: Snakemake takes it for a wildcard", "a file name without braces"
        yield Problem(where, what, shown(file), allowed, "rename the file; placeholders are for the arguments")
    elif not Path(file).is_file():
        advice = "check the spelling and the directory; arguments of the script go into args"
        yield Problem(where, "there is no such script", shown(file), f"a file, {places()}", advice)


def _directory(settings: Settings) -> Iterator[Problem]:
    directory = settings.experiment.workload.directory
    parts = PurePosixPath(directory or "").parts
    if directory is None or "{run_dir}" not in directory or (parts[0] == "{run_dir}" and ".." not in parts):
        return
    what, allowed = "a directory outside of the run's own", '"{run_dir}", or a directory below it: "{run_dir}/scratch"'
    yield Problem(
        settings.config.where("workload", "directory"), what, directory, allowed, 'set directory: "{run_dir}"'
    )


def _throughput_regex(settings: Settings) -> Iterator[Problem]:
    text = settings.experiment.workload.throughput_regex
    try:
        groups: int | str = 1 if text is None else re.compile(text).groups
    except re.error as error:
        groups = str(error)
    if groups != 1:
        what, found = "not a regular expression with one group", f"{shown(text)}: {groups}"
        if isinstance(groups, int):
            found += " groups"
        allowed = "a Python regular expression whose one group is a number"
        advice = 'put the number in parentheses, and others in (?:...): "throughput: ([0-9.]+) samples/s"'
        yield Problem(settings.config.where("workload", "throughput_regex"), what, found, allowed, advice)


# Placeholders


@dataclass(frozen=True)
class _Template:
    """A text with placeholders, its place, and the names that it may use."""

    where: str
    text: str
    allowed: tuple[str, ...] = placeholders.NAMES

    def problem(self, what: str, allowed: str, advice: str) -> Problem:
        return Problem(self.where, what, shown(self.text), allowed, advice)


def _texts_with_placeholders(settings: Settings) -> Iterator[Problem]:
    for template in _templates(settings):
        try:
            names = sorted(placeholders.names_in(template.text))
        except ValueError:
            yield _brace_problem(template, "")
            continue
        problems = [problem for name in names if (problem := _placeholder_problem(settings, template, name))]
        yield from problems[:1]
        if not problems and is_arithmetic(template.text):
            yield from _arithmetic_problem(settings, template)


def _templates(settings: Settings) -> Iterator[_Template]:
    experiment, config = settings.experiment, settings.config
    workload = experiment.workload
    arguments: list[tuple[KeyPath, tuple[str, ...]]] = [(("workload", "args"), workload.args)]
    arguments += [(("variants", name, "args"), variant.args) for name, variant in experiment.variants.items()]
    for path, texts in arguments:
        for index, text in enumerate(texts):
            yield _Template(config.where(*path, index), text)
    for index, text in enumerate((workload.prepare or ())[1:], start=1):
        yield _Template(config.where("workload", "prepare", index), text, ("data_dir", "seed"))
    if workload.directory is not None:
        yield _Template(config.where("workload", "directory"), workload.directory)
    for document, path, env in _environments(settings):
        for name, text in env.items():
            yield _Template(document.where(*path, name), text)


def _environments(settings: Settings) -> Iterator[tuple[Document, KeyPath, Mapping[str, str]]]:
    yield settings.config, ("workload", "env"), settings.experiment.workload.env
    for name, variant in settings.experiment.variants.items():
        yield settings.config, ("variants", name, "env"), variant.env
    yield settings.cluster, ("network", "env"), settings.site.network.env


def _placeholder_problem(settings: Settings, template: _Template, name: str) -> Problem | None:
    workload = settings.experiment.workload
    if name not in placeholders.NAMES:
        return _brace_problem(template, name)
    if name not in template.allowed:
        allowed = " ".join(f"{{{word}}}" for word in template.allowed)
        advice = "write the value itself: data is prepared once, for every scale"
        return template.problem("a placeholder that has no value here", allowed, advice)
    example = {"data_dir": "data/digits", "lr": "0.05"}.get(name)
    # prepare without data_dir is reported by _preparation
    if example is None or getattr(workload, name) is not None or len(template.allowed) == 2:
        return None
    advice = f"set workload.{name}, for example {name}: {example}, or remove the argument"
    return template.problem(
        f"{{{name}}} is used, but workload.{name} is null", f"{{{name}}} with a value of workload.{name}", advice
    )


def _brace_problem(template: _Template, name: str) -> Problem:
    """Return the problem of braces that are not a placeholder. name: the text between them, if known."""
    words = [f"{{{word}}}" for word in template.allowed]
    doubled = f"double literal braces: '{literal(template.text)}'"
    guess = did_you_mean(f"{{{name}}}", words) if re.fullmatch(r"\w+", name) else None
    advice = guess or f"close the placeholder, or {doubled}"
    allowed = f"{' '.join(words)}, and {{{{ and }}}} for literal braces"
    return template.problem("braces that are no placeholder", allowed, advice)


def _arithmetic_problem(settings: Settings, template: _Template) -> Iterator[Problem]:
    for run, numbers in _numbers(settings):
        try:
            expand(template.text, numbers)
        except ValueError as error:
            allowed = "whole numbers and placeholders that are, with * / // between; / has to divide evenly"
            advice = "write // to round down, or choose numbers that divide evenly; a factor of {lr} belongs into lr"
            yield template.problem(f"not a whole number: {error} ({run})", allowed, advice)
            return


def _samples_per_step(settings: Settings) -> Iterator[Problem]:
    text = settings.experiment.workload.samples_per_step
    for run, numbers in _numbers(settings) if text is not None else ():
        try:
            samples = whole_number(str(text), {name: numbers[name] for name in _COUNTS})
            objection = "" if samples > 0 else f"{samples} ({run})"
        except ValueError as error:
            objection = f"{error} ({run})"
        if objection:
            names = " ".join(f"{{{name}}}" for name in _COUNTS)
            yield Problem(
                settings.config.where("workload", "samples_per_step"),
                "not a number of samples",
                f"{shown(text)}: {objection}",
                f"whole numbers above 0 and {names}, with * / // between",
                'write how many samples one process consumes in one optimizer step, such as "{batch_per_gpu} * 4"',
            )
            return


def _numbers(settings: Settings) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield mode/scale/repeat of each run, and the values of its number placeholders."""
    experiment, workload = settings.experiment, settings.experiment.workload
    first = experiment.first_scale.world_size
    repeats = range(1, experiment.jobs * experiment.repeats.most + 1)
    for mode, scale, repeat in product(experiment.modes, experiment.scales, repeats):
        if mode == "strong" and workload.batch_per_gpu * first % scale.world_size:
            continue  # reported by _strong_mode
        batch, global_batch = batches(workload.batch_per_gpu, mode, scale.world_size, first)
        yield (
            f"{mode}/{scale}/r{repeat}",
            {
                "batch_per_gpu": batch,
                "global_batch": global_batch,
                "lr": workload.lr,
                "nodes": scale.nodes,
                "gpus_per_node": scale.gpus_per_node,
                "world_size": scale.world_size,
                "threads_per_rank": settings.site.node.threads_per_rank,
                "seed": workload.seed + repeat - 1,
            },
        )


# The ladder


def _steps(settings: Settings) -> Iterator[Problem]:
    measure, device = settings.experiment.measure, settings.site.node.device
    warmup_steps = measure.warmup_steps_on(device)
    needed = warmup_steps + measure.min_steps
    if measure.max_steps is not None and measure.max_steps < needed:
        origin = f" (null, with device {device})" if measure.warmup_steps is None else ""
        found = f"max_steps {measure.max_steps}, warmup_steps {warmup_steps}{origin}, min_steps {measure.min_steps}"
        allowed, advice = f"at least warmup_steps + min_steps = {needed}, or null", f"set max_steps: {needed} or more"
        where, what = settings.config.where("measure", "max_steps"), "runs would end before enough steps are measured"
        yield Problem(where, what, found, allowed, f"{advice}, or lower min_steps")
    if measure.profile_steps and measure.max_steps is None and measure.max_seconds is None:
        what = "the profiled steps follow the measured ones, and no limit says where those end"
        where, found = settings.config.where("measure", "profile_steps"), f"profile_steps {measure.profile_steps}"
        advice = "set measure.max_steps to fewer steps than the script makes, or profile_steps: 0"
        yield Problem(where, what, found, "profile_steps with max_steps or max_seconds", advice)


def _variant_names(settings: Settings) -> Iterator[Problem]:
    variants = settings.experiment.variants
    if variants[REFERENCE_VARIANT].launcher == "python":
        what = "launcher python cannot use several nodes, and the gates judge this variant"
        where, advice = settings.config.where("variants", REFERENCE_VARIANT, "launcher"), "use it in another variant"
        yield Problem(where, what, "python", "torchrun or srun", advice)
    if PLAIN_VARIANT in variants:
        what = "this name is reserved for the script without a launcher (measure.plain_baseline)"
        where = settings.config.where("variants", PLAIN_VARIANT)
        yield Problem(where, what, PLAIN_VARIANT, f"any name but {PLAIN_VARIANT}", "give the variant another name")


def _scales(settings: Settings) -> Iterator[Problem]:
    experiment, gpus = settings.experiment, settings.site.node.gpus
    first = experiment.first_scale
    for stage in experiment.ladder:
        path = ("stages", stage.name, "scales")
        if stage.name == "stage1" and len(stage.scales) > 1:
            least = min(stage.scales, key=lambda scale: (scale.world_size, scale.nodes))
            what, found = "stage 1 is one scale, the baseline of every efficiency", ", ".join(map(str, stage.scales))
            advice = f"set scales: [{least}]; one node goes into stage2, several nodes into stage3"
            yield Problem(settings.config.where(*path), what, found, "[1x1], or the smallest that fits", advice)
            return
        for index, scale in enumerate(stage.scales):
            fault = _of_another_stage(stage.name, scale)
            if fault is None and scale.gpus_per_node > gpus:
                allowed = f"at most {gpus} per node ({settings.cluster.where('node', 'gpus')})"
                advice = f"use at most {gpus} GPUs per node, or correct node.gpus if the nodes have more"
                what = f"the scale asks for {scale.gpus_per_node} GPUs per node, the site has {gpus}"
                fault = what, allowed, advice
            elif fault is None and stage.name != "stage1" and scale.world_size <= first.world_size:
                allowed = f"scales with more than {first.world_size} GPUs"
                fault = f"the ladder starts at {first}, and climbs from there", allowed, f"remove {scale}"
            elif fault is None and scale in stage.scales[:index]:
                fault = "a scale twice", "each scale once", f"remove one {scale}; repeats measures it more often"
            if fault is not None:
                what, allowed, advice = fault
                yield Problem(settings.config.where(*path, index), what, str(scale), allowed, advice)


def _of_another_stage(stage: str, scale: Scale) -> tuple[str, str, str] | None:
    """Return what, allowed and next of a scale that another stage measures. So no scale can be in two stages."""
    place = "stage3" if scale.nodes > 1 else "stage2" if scale.gpus_per_node > 1 else "stage1"
    if stage in ("stage1", place):
        return None
    if stage == "stage2":
        what, allowed = "stage 2 is one node with several GPUs", "1x2, 1x3, ...: one node, two or more GPUs"
    else:
        gpus = scale.gpus_per_node
        what, allowed = "stage 3 is several nodes", f"2x{gpus}, 3x{gpus}, ...: two or more nodes"
    return what, allowed, f"move {scale} to stages.{place}, or remove it"


def _thresholds(settings: Settings) -> Iterator[Problem]:
    gate = settings.experiment.stages.stage1.gate
    if gate.min_efficiency is not None:
        what = "stage 1 is the baseline of the efficiency and cannot be judged by it"
        where = settings.config.where("stages", "stage1", "gate", "min_efficiency")
        allowed, advice = "min_samples_per_s and max_data_wait_fraction", "set it in stage2 and stage3"
        yield Problem(where, what, str(gate.min_efficiency), allowed, advice)


def _strong_mode(settings: Settings) -> Iterator[Problem]:
    experiment, workload = settings.experiment, settings.experiment.workload
    if "strong" not in experiment.modes:
        return
    batch, first = workload.batch_per_gpu, experiment.first_scale.world_size
    wrong = [scale for scale in experiment.scales if batch * first % scale.world_size]
    if wrong:
        total = math.lcm(*(scale.world_size for scale in experiment.scales))
        multiple = total // math.gcd(total, first)
        better = " or ".join(str(multiple * k) for k in (batch // multiple, -(-batch // multiple)) if k)
        sizes = ", ".join(f"{scale} ({scale.world_size} GPUs)" for scale in wrong)
        yield Problem(
            settings.config.where("workload", "batch_per_gpu"),
            "strong mode cannot divide the global batch evenly",
            f"a global batch of {batch * first} over {sizes}",
            f"a multiple of {multiple}, which all scales divide",
            f"set batch_per_gpu: {better}, or remove the scale, or strong from modes",
        )
    # A plain search is enough, because malformed templates are reported elsewhere.
    of_all = (*workload.args, *workload.env.values())
    without = [
        name
        for name, variant in experiment.variants.items()
        if not any(_BATCH.search(text) for text in (*of_all, *variant.args, *variant.env.values()))
    ]
    if without:
        yield Problem(
            settings.config.where("workload", "args"),
            "strong mode changes the batch per GPU, but nothing passes it to the script",
            f"no batch placeholder in the arguments and the environment of {', '.join(without)}",
            "{batch_per_gpu} or {global_batch} in args or env of the workload or the variant",
            'add for example --batch-size, "{batch_per_gpu}", or remove strong from modes',
        )


# The environment and the site


def _variables(settings: Settings) -> Iterator[Problem]:
    for document, path, env in _environments(settings):
        for name in env:
            if name in OWN_VARIABLES or name.startswith(OWN_PREFIX):
                allowed = f"any variable but {', '.join(OWN_VARIABLES)} and {OWN_PREFIX}..."
                what = "a variable that ddp-ladder sets for each process"
                yield Problem(document.where(*path, name), what, name, allowed, "remove it")


def _secrets(settings: Settings) -> Iterator[Problem]:
    for document, path, env in _environments(settings):
        for name, value in env.items():
            if name in settings.experiment.workload.secrets or (is_secret_name(name) and "{" not in value):
                what = "the value of a secret in a file; plan, job.sh and records would have it as well"
                advice = f"remove it here, add {name} to workload.secrets, and `export {name}=...` before you start"
                yield Problem(document.where(*path, name), what, None, "its name in workload.secrets", advice)


def _sbatch_options(settings: Settings) -> Iterator[Problem]:
    options_of: list[tuple[Document, KeyPath, tuple[str, ...]]]
    options_of = [(settings.cluster, ("slurm", "extra"), settings.site.slurm.extra)]
    for stage in settings.experiment.ladder:
        options_of += [(settings.config, ("stages", stage.name, "slurm", "extra"), stage.slurm.extra)]
    for document, path, options in options_of:
        for index, option in enumerate(options):
            name = "".join(takewhile(lambda char: char != "=", option)).removeprefix("--")
            # As in sbatch, a name may be abbreviated; --mem-per-cpu and the like are set by the key of --mem.
            key = next((key for known, key in _SET_BY_KEYS.items() if known.startswith(name) or name == known), None)
            key = key or next((key for known, key in _SET_BY_KEYS.items() if name.startswith(f"{known}-per-")), None)
            if key or any(own.startswith(name) for own in _OWN_OPTIONS):
                advice = f"remove it and set {key} instead" if key else "remove it: ddp-ladder sets it for its jobs"
                allowed = "options that nothing else sets, such as --exclusive or --hint=nomultithread"
                what = "an option that is set elsewhere"
                yield Problem(document.where(*path, index), what, shown(option), allowed, advice)


def _cores(settings: Settings) -> Iterator[Problem]:
    node = settings.site.node
    if node.cpus < node.gpus:
        what, found = "fewer CPU cores than GPUs", f"cpus {node.cpus}, gpus {node.gpus}"
        advice = "set node.cpus to the cores that a job gets on one node (nproc shows them)"
        yield Problem(settings.cluster.where("node", "cpus"), what, found, f"at least {node.gpus}", advice)


def _python(settings: Settings) -> Iterator[Problem]:
    software = settings.site.software
    python = software.python
    # A Python from modules, setup or an image cannot be checked on this machine.
    elsewhere = software.container or (python and "/" not in python and (software.modules or software.setup))
    if python is not None and not elsewhere and shutil.which(python) is None:
        allowed = "a Python interpreter, or null for the one that runs the workflow"
        advice = "write the full path, as `which python` shows it where the training runs"
        where = settings.cluster.where("software", "python")
        yield Problem(where, "not a program that can be run", shown(python), allowed, advice)


def _container(settings: Settings) -> Iterator[Problem]:
    software, where = settings.site.software, settings.cluster.where
    if software.container is None:
        return
    if software.python is None:
        what = "the Python that runs the workflow is not in the container"
        allowed, advice = "the name or path of a Python inside the image", "set software.python: python3"
        yield Problem(where("software", "python"), what, "python: null", allowed, advice)
    for index, argument in enumerate(software.container.args):
        if argument.partition("=")[0] in _CLEARING_OPTIONS:
            what = "it clears the run's environment: ranks would not find each other, nor their run.json"
            allowed = f"options of `{software.container.engine} exec` that leave the environment as it is"
            advice = "remove it; to leave out the home directory, use --no-home"
            yield Problem(where("software", "container", "args", index), what, shown(argument), allowed, advice)


def _nccl(settings: Settings) -> Iterator[Problem]:
    if settings.site.node.device != "cpu":
        return
    wanted = [settings.cluster.where("network", "backend")] if settings.site.network.backend == "nccl" else []
    for name, variant in settings.experiment.variants.items():
        if variant.network.backend == "nccl":
            wanted += [settings.config.where("variants", name, "network", "backend")]
    advice = "set backend: auto, or node.device: cuda in the site's file if its nodes have GPUs"
    for where in wanted:
        yield Problem(where, "NCCL needs GPUs, and the site has device: cpu", "nccl", "auto or gloo", advice)
