"""Checks across keys, of files and of names: settings that contradict each other or name what is not there.

Names of environment variables that no communication library reads get a warning with a did-you-mean, no refusal.
"""

from __future__ import annotations

import difflib
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path

from ddp_ladder_instrument import slow_settings
from ddp_ladder_instrument.redaction import is_secret_name, secrets_among

from ddp_ladder.common.files import places
from ddp_ladder.common.messages import Problem, did_you_mean
from ddp_ladder.platform.accelerators import is_gpu
from ddp_ladder.platform.engines import ENGINES
from ddp_ladder.platform.launchers import LAUNCHERS, WITH_RANKS
from ddp_ladder.settings.keys import BatchRange, Settings, Site, Slurm
from ddp_ladder.settings.terms import (
    NUMBER_PLACEHOLDERS,
    PLACEHOLDERS,
    PLAIN_VARIANT,
    REFERENCE_VARIANT,
    batches,
    expand,
    is_mig,
    whole_number,
)
from ddp_ladder.settings.yaml import KeyPath, YamlFile, shown

# The launchers and ddp-ladder set these for each process; another value would break the process group.
OWN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
OWN_PREFIX = "DDP_LADDER_"
_SECRET = "the value of a secret in a file; plan, job.sh and records would have it as well"
_MODULE = re.compile(r"-m [A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
PASSES_BATCH = re.compile(r"\{(?:batch_per_gpu|global_batch)\}")
_ACCUMULATION = re.compile(r"\{(?:accumulation|global_batch)\}")

# Options of sbatch that slurm.extra may not hold, as they would break the ladder.
_OWN_OPTIONS = (
    "account", "partition", "qos", "constraint", "reservation", "nodelist", "exclude", "gres", "mem", "cpus-per-task",
    "time", "export", "nodes", "gpus", "ntasks", "tasks-per-node", "output", "error", "job-name", "comment", "parsable",
    "clusters", "chdir", "wrap", "array", "wait", "test-only", "requeue", "no-requeue", "gpu-bind", "tres-bind",
    "tres-per-task", "distribution",
)  # fmt: skip


def conflicts(settings: Settings) -> Iterator[Problem]:
    """Yield every conflict between settings, or between a setting and this machine's files."""
    for check in (
        _scripts, _throughput_regex, _placeholders, _steps, _variant_names, _scales, _strong_mode, _global_batch,
        _variables, _secret_arguments, _sbatch_options, _software, _numa_binding,
    ):  # fmt: skip
        yield from check(settings)


# The workload


def _scripts(settings: Settings) -> Iterator[Problem]:
    workload, where = settings.experiment.workload, settings.config.where
    scripts = [(where("workload", "script"), workload.script)]
    if workload.prepare is not None:
        scripts.append((where("workload", "prepare", 0), workload.prepare[0]))
    for place, script in scripts:
        if not Path(script).is_file() and not _MODULE.fullmatch(script):
            allowed = f'a file, {places()}; as workload.script also "-m package.module"'
            advice = "check the spelling and the directory; arguments of the script go into args"
            yield Problem(place, "there is no such script", shown(script), allowed, advice)
    if workload.prepare is not None and workload.data_dir is None:
        what = "there is no directory for the prepared data"
        allowed = "workload.prepare together with workload.data_dir"
        advice = "set workload.data_dir, such as data_dir: data/digits, or set prepare: null"
        yield Problem(where("workload", "prepare"), what, "workload.data_dir: null", allowed, advice)


def _throughput_regex(settings: Settings) -> Iterator[Problem]:
    text = settings.experiment.workload.throughput_regex
    try:
        fault = "" if text is None or re.compile(text).groups == 1 else f"{re.compile(text).groups} groups"
    except re.error as error:
        fault = str(error)
    if fault:
        allowed = "a Python regular expression whose one group is a number"
        advice = 'put the number in parentheses, and others in (?:...): "throughput: ([0-9.]+) samples/s"'
        where, what = settings.config.where("workload", "throughput_regex"), "not a regular expression with one group"
        yield Problem(where, what, f"{shown(text)}: {fault}", allowed, advice)


def _placeholders(settings: Settings) -> Iterator[Problem]:
    """Fill in every text for each mode and scale, as the plan will."""
    rest = "of numbers, products and quotients that are whole; {{ and }} for braces"
    advice = "give the placeholder a value (workload.lr, workload.data_dir), or write literal braces twice"
    for where, text, filled, names in _texts(settings):
        for run, values in _values(settings):
            try:
                filled(text, {name: values[name] for name in names})
            except ValueError as error:
                known = [f"{{{name}}}" for name in names if values[name] is not None]
                guesses = (did_you_mean(name, known) for name in re.findall(r"\{\w+\}", text) if name not in known)
                allowed, meant = f"{' '.join(known)}; {rest}", next(filter(None, guesses), advice)
                yield Problem(where, f"{error} ({run})", shown(text), allowed, meant)
                break


def _command_lines(settings: Settings) -> Iterator[tuple[YamlFile, KeyPath, tuple[str, ...]]]:
    """Yield every list of arguments with its place."""
    config, workload, container = settings.config, settings.experiment.workload, settings.site.software.container
    yield config, ("workload", "args"), workload.args
    yield config, ("workload", "wrapper"), workload.wrapper
    yield config, ("workload", "prepare"), workload.prepare or ()
    yield settings.cluster, ("software", "container", "args"), container.args if container else ()
    for name, variant in settings.experiment.variants.items():
        yield config, ("variants", name, "args"), variant.args
        yield config, ("variants", name, "wrapper"), variant.wrapper or ()


_Filled = Callable[[str, Mapping[str, object]], object]


def _texts(settings: Settings) -> Iterator[tuple[str, str, _Filled, Sequence[str]]]:
    """Yield place, text, the function that fills it in, and the placeholders that it may use."""
    experiment, where = settings.experiment, settings.config.where
    workload = experiment.workload
    for document, path, words in _command_lines(settings):
        is_prepare = path[-1] == "prepare"  # a script and its arguments, once for every scale
        if document is settings.config:
            for index, text in enumerate(words[is_prepare:], start=int(is_prepare)):
                yield where(*path, index), text, expand, ("data_dir", "seed") if is_prepare else PLACEHOLDERS
    if workload.directory is not None:
        yield where("workload", "directory"), workload.directory, expand, PLACEHOLDERS
    if workload.samples_per_step is not None:
        yield where("workload", "samples_per_step"), workload.samples_per_step, _samples, NUMBER_PLACEHOLDERS
    for document, path, env in environments(settings):
        for name, text in env.items():
            yield document.where(*path, name), text, expand, PLACEHOLDERS


def _samples(text: str, values: Mapping[str, object]) -> int:
    """Return samples per step. Raises ValueError if it is no number above 0."""
    if (samples := whole_number(text, values)) > 0:
        return samples
    raise ValueError("no samples in a step")


def environments(settings: Settings) -> Iterator[tuple[YamlFile, KeyPath, Mapping[str, str]]]:
    """Yield every section with variables of the environment, with its place."""
    yield settings.config, ("workload", "env"), settings.experiment.workload.env
    for name, variant in settings.experiment.variants.items():
        yield settings.config, ("variants", name, "env"), variant.env
    yield settings.cluster, ("network", "env"), settings.site.network.env


def _values(settings: Settings) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield mode/scale of the runs, and the values of their placeholders."""
    experiment, workload = settings.experiment, settings.experiment.workload
    first = experiment.first_scale.world_size
    for mode, scale in product(experiment.modes, experiment.scales):
        size, fixed = scale.world_size, workload.global_batch
        batch, global_batch = batches(workload.least_batch, mode, size, first, fixed)
        if not batch or global_batch % (batch * size):
            continue  # reported by _strong_mode or _global_batch
        values: dict[str, object] = {
            "batch_per_gpu": batch, "global_batch": global_batch, "accumulation": global_batch // (batch * size),
            "nodes": scale.nodes, "gpus_per_node": scale.gpus_per_node, "world_size": size,
            "lr": workload.lr, "threads_per_rank": settings.site.node.threads_per_rank, "data_dir": workload.data_dir,
        }  # fmt: skip
        yield f"{mode}/{scale}", {**dict.fromkeys(PLACEHOLDERS, "known"), **values}


# The ladder


def _steps(settings: Settings) -> Iterator[Problem]:
    measure, where = settings.experiment.measure, settings.config.where
    warmup_steps = measure.warmup_steps_on(settings.site.node.device)
    needed = warmup_steps + measure.min_steps
    if measure.max_steps is not None and measure.max_steps < needed:
        given = f"max_steps {measure.max_steps}, warmup_steps {warmup_steps}, min_steps {measure.min_steps}"
        allowed, advice = f"at least warmup_steps + min_steps = {needed}, or null", f"set max_steps: {needed} or more"
        what = "runs would end before enough steps are measured"
        yield Problem(where("measure", "max_steps"), what, given, allowed, f"{advice}, or lower min_steps")
    if measure.profile_steps and measure.max_steps is None and measure.max_seconds is None:
        what = "the profiled steps follow the measured ones, and no limit says where those end"
        advice = "set measure.max_steps to fewer steps than the script makes, or profile_steps: 0"
        allowed = "profile_steps with max_steps or max_seconds"
        yield Problem(where("measure", "profile_steps"), what, str(measure.profile_steps), allowed, advice)


def _variant_names(settings: Settings) -> Iterator[Problem]:
    variants = settings.experiment.variants
    if (launcher := variants[REFERENCE_VARIANT].launcher) not in (None, *WITH_RANKS):
        what = f"launcher {launcher} cannot use several nodes, and the gates judge this variant"
        where, advice = settings.config.where("variants", REFERENCE_VARIANT, "launcher"), "use it in another variant"
        yield Problem(where, what, launcher, " or ".join(WITH_RANKS), advice)
    if PLAIN_VARIANT in variants:
        what = "this name is reserved for the script without a launcher (measure.plain_baseline)"
        where = settings.config.where("variants", PLAIN_VARIANT)
        yield Problem(where, what, PLAIN_VARIANT, f"any name but {PLAIN_VARIANT}", "give the variant another name")


def _scales(settings: Settings) -> Iterator[Problem]:
    """Each stage has scales of its own kind, so no scale is in two stages."""
    experiment, gpus = settings.experiment, settings.site.node.gpus
    first = experiment.first_scale
    kinds = {"stage2": "one node and two or more GPUs", "stage3": "two or more nodes"}
    for stage in experiment.ladder:
        for index, scale in enumerate(stage.scales):
            place = "stage3" if scale.nodes > 1 else "stage2"
            where = settings.config.where("stages", stage.name, "scales", index)
            if scale.gpus_per_node > 1 and is_mig(settings.site.node.gres or ""):
                what = "a process sees one MIG slice, so no second rank of a node has a GPU"
                advice = f"remove {scale}, or name whole GPUs in {settings.cluster.where('node', 'gres')}"
                yield Problem(where, what, f"{scale} with gres: {settings.site.node.gres}", "such as 1x1, 2x1", advice)
            elif scale.gpus_per_node > gpus:
                what = f"the scale asks for {scale.gpus_per_node} GPUs per node, the site has {gpus}"
                allowed = f"at most {gpus} per node ({settings.cluster.where('node', 'gpus')})"
                advice = f"use at most {gpus} GPUs per node, or correct node.gpus if the nodes have more"
                yield Problem(where, what, str(scale), allowed, advice)
            elif stage.name in kinds and (place != stage.name or scale.world_size <= first.world_size):
                what = f"{stage.name} has scales of {kinds[stage.name]}, with more GPUs than stage1's {first}"
                advice = f"remove {scale}" + (f", or move it to stages.{place}" if place != stage.name else "")
                allowed = "such as 1x4" if stage.name == "stage2" else "such as 2x4"
                yield Problem(where, what, str(scale), allowed, advice)


def _strong_mode(settings: Settings) -> Iterator[Problem]:
    experiment, workload = settings.experiment, settings.experiment.workload
    searches = isinstance(workload.batch_per_gpu, BatchRange)
    if workload.global_batch is not None or ("strong" not in experiment.modes and not searches):
        return
    first = experiment.first_scale.world_size
    multiple = math.lcm(first, *(scale.world_size for scale in experiment.scales)) // first
    if "strong" in experiment.modes and workload.least_batch % multiple:
        what = "strong mode cannot divide the global batch evenly among the GPUs of all scales"
        advice = "set batch_per_gpu to such a multiple, or remove the scale that does not fit, or strong from modes"
        where, given = settings.config.where("workload", "batch_per_gpu"), str(workload.least_batch)
        advice = f"{advice}; of a range, set `from`" if searches else advice
        yield Problem(where, what, given, f"a multiple of {multiple}", advice)
    if without := _variants_without(PASSES_BATCH, settings):
        changes = "a search changes" if searches else "strong mode changes"
        yield Problem(
            settings.config.where("workload", "args"),
            f"{changes} the batch per GPU, but nothing passes it to the script",
            f"no batch placeholder in the arguments and the environment of {', '.join(without)}",
            "{batch_per_gpu} or {global_batch} in args or env of the workload or the variant",
            'add for example --batch-size, "{batch_per_gpu}", or '
            + ("set workload.batch_per_gpu to a number" if searches else "remove strong from modes"),
        )


def _variants_without(placeholder: re.Pattern[str], settings: Settings) -> list[str]:
    """Return the names of the variants whose arguments and environment do not contain it."""
    workload = settings.experiment.workload
    of_all = (*workload.args, *workload.env.values())
    return [
        name
        for name, variant in settings.experiment.variants.items()
        if not any(placeholder.search(text) for text in (*of_all, *variant.args, *variant.env.values()))
    ]


def _global_batch(settings: Settings) -> Iterator[Problem]:
    """Check that batch_per_gpu x GPUs x accumulation can be workload.global_batch at every scale."""
    experiment, workload = settings.experiment, settings.experiment.workload
    wanted, batch = workload.global_batch, workload.batch_per_gpu
    if wanted is None:
        return
    where = settings.config.where("workload", "global_batch")
    if isinstance(batch, BatchRange):
        what = "global_batch needs a known batch per GPU, and batch_per_gpu lets the ladder search for one"
        advice = "search without global_batch first (snakemake fit), then set batch_per_gpu to the batch that it chose"
        yield Problem(where, what, "batch_per_gpu: auto, or a range", "global_batch with a number", advice)
        return
    if "weak" in experiment.modes:
        what = "weak mode lets the global batch grow with the GPUs, and global_batch keeps it"
        given, allowed = f"modes: [{', '.join(experiment.modes)}]", "global_batch with modes: [strong]"
        yield Problem(where, what, given, allowed, "set modes: [strong], or remove global_batch")
    if odd := [scale for scale in experiment.scales if wanted % (batch * scale.world_size)]:
        multiple = math.lcm(*(batch * scale.world_size for scale in experiment.scales))
        below = wanted // multiple * multiple
        nearest = " or ".join(str(batch) for batch in (below, below + multiple) if batch)
        what = f"no multiple of batch_per_gpu x GPUs, {batch} x {odd[0].world_size} at {odd[0]}"
        allowed = f"a multiple of {multiple}, which fits every scale; nearest: {nearest}"
        yield Problem(where, what, str(wanted), allowed, f"set global_batch: {nearest}, or another batch_per_gpu")
    elif wanted > batch * experiment.first_scale.world_size and (without := _variants_without(_ACCUMULATION, settings)):
        yield Problem(
            settings.config.where("workload", "args"),
            "global_batch asks for accumulated batches, but nothing passes their number to the script",
            f"no {{accumulation}} in the arguments and the environment of {', '.join(without)}",
            "{accumulation} or {global_batch} in args or env of the workload or the variant",
            'add for example --accumulate, "{accumulation}"',
        )


# The environment and the site


def _variables(settings: Settings) -> Iterator[Problem]:
    for document, path, env in environments(settings):
        for name, value in env.items():
            where = document.where(*path, name)
            if name in OWN_VARIABLES or name.startswith(OWN_PREFIX):
                allowed = f"any variable but {', '.join(OWN_VARIABLES)} and {OWN_PREFIX}..."
                yield Problem(where, "a variable that ddp-ladder sets for each process", name, allowed, "remove it")
            elif (
                name in settings.experiment.workload.secrets
                or (is_secret_name(name) and "{" not in value)
                or list(secrets_among([value]))
            ):
                advice = f"remove it here, add {name} to workload.secrets, and `export {name}=...` before you start"
                yield Problem(where, _SECRET, None, "its name in workload.secrets", advice)


def _secret_arguments(settings: Settings) -> Iterator[Problem]:
    """Check that no argument holds a secret."""
    for document, path, words in _command_lines(settings):
        for index in secrets_among(words):
            advice = (
                "remove it here, name a variable in workload.secrets, `export` it before you start, and read it in the "
                "script (os.environ); if the script must have it as an argument, start it from one of yours that adds "
                "it to sys.argv"
            )
            yield Problem(document.where(*path, index), _SECRET, None, "arguments without secrets", advice)


def _sbatch_options(settings: Settings) -> Iterator[Problem]:
    sections: list[tuple[YamlFile, KeyPath, Slurm]] = [(settings.cluster, ("slurm",), settings.site.slurm)]
    sections += [(settings.config, ("stages", rung.name, "slurm"), rung.slurm) for rung in settings.experiment.ladder]
    for document, path, slurm in sections:
        for index, option in enumerate(slurm.extra):
            name = option.removeprefix("--").partition("=")[0]
            # As in sbatch, a name may be abbreviated; --mem-per-cpu and the like are set by the key of --mem.
            if any(own.startswith(name) or name.startswith(f"{own}-per-") for own in _OWN_OPTIONS):
                what, allowed = "an option that ddp-ladder sets", "options such as --exclusive or --hint=nomultithread"
                advice = "remove it; keys of slurm, node and the stage (scales, runtime) set what is yours to choose"
                yield Problem(document.where(*path, "extra", index), what, shown(option), allowed, advice)


def _software(settings: Settings) -> Iterator[Problem]:
    software, where = settings.site.software, settings.cluster.where
    python = software.python
    # A Python from modules, setup or an image cannot be checked on this machine.
    elsewhere = software.container or (python and "/" not in python and (software.modules or software.setup))
    if python is not None and not elsewhere and shutil.which(python) is None:
        allowed = "a Python interpreter, or null for the one that runs the workflow"
        advice = "write the full path, as `which python` shows it where the training runs"
        yield Problem(where("software", "python"), "not a program that can be run", shown(python), allowed, advice)
    container = software.container
    if container is None:
        return
    engine, gpus = ENGINES[container.engine], container.gpus
    if gpus is not None and gpus not in engine.gpu_options:
        having = " or ".join(name for name, engine in ENGINES.items() if gpus in engine.gpu_options)
        what = f"{engine.name} has no option for {gpus}"
        devices = "--device=/dev/kfd and --device=/dev/dri of podman"
        advice = f"set gpus: null and give the devices in args, such as {devices}"
        yield Problem(where("software", "container", "gpus"), what, gpus, f"{gpus} with {having}", advice)
    if container.binds and not engine.binds_directories:
        what, advice = f"{engine.name} takes no binds", f"remove them, and write them into {container.image} as mounts"
        allowed = "binds with " + " or ".join(name for name, other in ENGINES.items() if other.binds_directories)
        yield Problem(where("software", "container", "binds"), what, shown([*container.binds]), allowed, advice)
    for index, argument in enumerate(container.args):
        if argument.partition("=")[0] in engine.clearing_options:
            what = "it clears the run's environment: ranks would not find each other, nor their run.json"
            allowed = f"options of {engine.name} that leave the environment as it is"
            advice = "remove it; to leave out the home directory, use --no-home"
            yield Problem(where("software", "container", "args", index), what, shown(argument), allowed, advice)


def _numa_binding(settings: Settings) -> Iterator[Problem]:
    site = settings.site
    given: list[tuple[str, str | None, str]]
    given = [(settings.cluster.where("numa_binding"), site.numa_binding, site.launcher)]
    for name, variant in settings.experiment.variants.items():
        where = settings.config.where("variants", name, "numa_binding")
        given.append((where, variant.numa_binding, variant.launcher or site.launcher))
    for where, binding, launcher in given:
        if binding is not None and not LAUNCHERS[launcher].binds_numa:
            what = f"launcher {launcher} has no such option; nothing reads it"
            allowed = " or ".join(name for name, other in LAUNCHERS.items() if other.binds_numa)
            yield Problem(where, what, binding, f"numa_binding with launcher {allowed}", "remove it")


FILE = Path(__file__).with_name("variables.txt")
SHELL = "the shell's environment"

# Every name of these families is listed; longer prefixes first.
CLOSED = {"TORCH_NCCL_": "torch", "NCCL_": "NCCL", "GLOO_": "Gloo", "OMP_": "OpenMP"}
# Of these only the common names are, so a warning needs a name that is very like one of them.
OPEN = ("TORCH_", "TORCHELASTIC_", "PYTORCH_", "GOMP_", "KMP_", "CUDA_", "HSA_", "FI_", "UCX_", "OFI_NCCL_")
PREFIXES = (*CLOSED, *OPEN)
LIKE, VERY_LIKE = 0.65, 0.9  # of difflib


def check_variables(settings: Settings, shell: Mapping[str, str]) -> tuple[Problem, ...]:
    """Return a warning for each variable in network.env, workload.env, the variants and the shell that nothing reads,
    or that slows every step.
    """
    places = list[tuple[str, str, str]]()
    for file, path, env in environments(settings):
        places += [(file.where(*path, name), name, value) for name, value in env.items()]
    names = sorted(name for name in shell if name.startswith(PREFIXES) or name in slow_settings.VARIABLES)
    places += [(f"{SHELL}: {name}", name, shell[name]) for name in names]
    found = [_slow(settings.site, *place) or _problem(place[1], place[0]) for place in places]
    return tuple(dict.fromkeys(filter(None, found)))


def _slow(site: Site, where: str, name: str, value: str) -> Problem | None:
    found = slow_settings.variables({name: value})
    words = slow_settings.in_words(found, is_gpu(site.node.device), site.network.transport)
    return Problem(where, "it slows every step", words, next=slow_settings.REMOVE) if words else None


def _problem(name: str, where: str) -> Problem | None:
    if _is_known(name):
        return None
    family = next((library for prefix, library in CLOSED.items() if name.startswith(prefix)), None)
    names = {_words(known): known for known in known_names()}
    near = difflib.get_close_matches(_words(name), names, n=1, cutoff=LIKE if family else VERY_LIKE)
    if not family and not near:
        return None
    what = f"no release of {family or 'a communication library'} that is known here reads this variable"
    if name in ("NCCL_TIMEOUT", "TORCH_NCCL_TIMEOUT"):
        advice = "remove it: the timeout of collectives is an argument of init_process_group in the script"
    elif near:
        meant = names[near[0]]
        opposite = ("DISABLE" in name) != ("DISABLE" in meant)
        advice = f'did you mean "{meant}"?' + (" It says the opposite: exchange 0 and 1" if opposite else "")
    else:
        advice = "remove it, unless a plugin or a newer release reads it"
    return Problem(where, what, name, next=advice)


def _words(name: str) -> str:
    """Return the sorted words of a name, with ENABLE for DISABLE: people write NCCL_ENABLE_IB for NCCL_IB_DISABLE."""
    return "_".join(sorted(name.upper().replace("DISABLE", "ENABLE").split("_")))


@cache
def known_names() -> tuple[str, ...]:
    """Read the list, once. A name that ends with * stands for all that begin like it."""
    return tuple(line for line in FILE.read_text().splitlines() if line and not line.startswith("#"))


def _is_known(name: str) -> bool:
    return name in known_names() or any(known.endswith("*") and name.startswith(known[:-1]) for known in known_names())
