"""What a schema cannot see: settings that contradict each other or point to what is not there."""

from __future__ import annotations

import itertools
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ddp_ladder import meant, placeholders, sbatch_options
from ddp_ladder.fingerprint import MAY_DIFFER, must_match
from ddp_ladder.messages import Problem, did_you_mean
from ddp_ladder.placeholders import NUMBERS, expand, is_arithmetic, literal, whole_number
from ddp_ladder.plan import PLAIN_VARIANT, batches
from ddp_ladder.settings import Experiment, GateThresholds, Scale, Settings, Site, Slurm, Stage, Variant, Workload
from ddp_ladder.strict_yaml import Document, KeyPath, key_name, shown

# What the launchers and ddp-ladder tell each process; another value would break the group.
OWN_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
OWN_PREFIX = "DDP_LADDER_"

_PREPARE_NAMES = ("data_dir", "seed")
_COUNTS = ("batch_per_gpu", "global_batch", "world_size", "nodes", "gpus_per_node")
_BATCH_NAMES = {"batch_per_gpu", "global_batch"}
_MODULE = re.compile(r"-m [A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ENVIRONMENT_TAKERS = ("--cleanenv", "-e", "--containall", "-C")  # of apptainer and singularity exec
_MOST_GPUS = 128  # of one node, as in the schema


def cross_field_problems(settings: Settings, config: Document, cluster: Document) -> list[Problem]:
    """Return every problem over several settings, or of a setting with this machine's files.

    config and cluster: the documents that the settings were read from, for the line of each key.
    """
    checks = _Checks(settings.experiment, settings.site, config, cluster)
    return [
        *checks.paths(),
        *checks.script(),
        *checks.prepare(),
        *checks.directory(),
        *checks.templates(),
        *checks.samples_per_step(),
        *checks.throughput_regex(),
        *checks.measure(),
        *checks.variant_names(),
        *checks.scales(),
        *checks.gates(),
        *checks.may_differ(),
        *checks.strong_mode(),
        *checks.environments(),
        *checks.slurm(),
        *checks.node(),
        *checks.python(),
        *checks.container(),
        *checks.interfaces(),
        *checks.backends(),
    ]


@dataclass(frozen=True)
class _Template:
    """A text with placeholders, where it stands, and the names that it may use."""

    document: Document
    path: KeyPath
    text: str
    allowed: tuple[str, ...] = placeholders.NAMES

    @property
    def where(self) -> str:
        return self.document.where(*self.path)


@dataclass(frozen=True)
class _Checks:
    experiment: Experiment
    site: Site
    config: Document
    cluster: Document

    @property
    def workload(self) -> Workload:
        return self.experiment.workload

    def paths(self) -> Iterator[Problem]:
        if self.workload.data_dir is None:
            return
        results, data_dir = (
            PurePosixPath(self.experiment.results),
            PurePosixPath(self.workload.data_dir),
        )
        if results.is_relative_to(data_dir):
            yield Problem(
                where=self.config.where("results"),
                what="the results would lie in the data directory",
                found=f"results {results}, workload.data_dir {data_dir}",
                allowed="a directory outside workload.data_dir",
                next="choose another directory for results, such as results: results",
            )

    def script(self) -> Iterator[Problem]:
        script = self.workload.script
        where = self.config.where("workload", "script")
        if not script.startswith("-"):
            yield from _file_problems(script, where, "workload.args")
        elif not _MODULE.fullmatch(script):
            yield Problem(
                where=where,
                what="neither a file nor a module",
                found=shown(script),
                allowed='a file, or "-m package.module"',
                next="write -m, one space and the module's name; arguments go into workload.args",
            )

    def prepare(self) -> Iterator[Problem]:
        if self.workload.prepare is None:
            return
        script = self.workload.prepare[0]
        where = self.config.where("workload", "prepare", 0)
        yield from _file_problems(script, where, "further items of workload.prepare")
        if self.workload.data_dir is None:
            yield Problem(
                where=self.config.where("workload", "prepare"),
                what="there is no directory for the prepared data",
                found="workload.data_dir: null",
                allowed="workload.prepare together with workload.data_dir",
                next="set workload.data_dir, such as data_dir: data/digits, or set prepare: null",
            )

    def directory(self) -> Iterator[Problem]:
        """No file in the way. Whether it can be made is seen on the nodes: their disks may be other ones."""
        directory = self.workload.directory
        if directory is None:
            return
        where, parts = self.config.where("workload", "directory"), PurePosixPath(directory).parts
        if "{run_dir}" in directory and (parts[0] != "{run_dir}" or ".." in parts):
            yield Problem(
                where=where,
                what="a directory outside of the run's own",
                found=directory,
                allowed='"{run_dir}", or a directory below it: "{run_dir}/scratch"',
                next='set directory: "{run_dir}"',
            )
            return
        fixed = PurePosixPath(*itertools.takewhile(lambda part: "{" not in part, parts))
        files = [path for path in (Path(fixed), *Path(fixed).parents) if path.is_file()]
        if files:
            yield Problem(
                where=where,
                what="there is a file where the directory is to be",
                found=str(files[0]),
                allowed="a directory, which is made when it is missing, or null for where Snakemake was started",
                next='set directory: "{run_dir}" to give each run a directory of its own',
            )

    def templates(self) -> Iterator[Problem]:
        for template in self._all_templates():
            try:
                names = sorted(placeholders.names_in(template.text))
            except ValueError:
                yield _brace_problem(template)
                continue
            problems = list(self._placeholder_problems(template, names))
            yield from problems
            if not problems and is_arithmetic(template.text):
                yield from self._arithmetic_problem(template)

    def _arithmetic_problem(self, template: _Template) -> Iterator[Problem]:
        """The first scale at which a product or quotient is no whole number."""
        for run, numbers in self._numbers():
            try:
                expand(template.text, numbers)
            except ValueError as error:
                yield Problem(
                    where=template.where,
                    what="not a whole number",
                    found=f"{shown(template.text)}: {error} ({run})",
                    allowed="whole numbers and placeholders that are, with * / // between; / has to divide evenly",
                    next="write // in place of / to round down, or choose numbers that divide evenly in every run"
                    if " / " in str(error)
                    else 'half of {nodes} is "{nodes} // 2"; a factor of {lr} belongs into workload.lr',
                )
                return

    def _numbers(self) -> Iterator[tuple[str, dict[str, object]]]:
        """Each run's mode, scale and repeat, and what the placeholders for numbers stand for in it."""
        workload = self.workload
        scales = [scale for stage in self.experiment.stages for scale in stage.scales]
        for mode, scale, repeat in itertools.product(
            self.experiment.modes, scales, range(1, self.experiment.repeats + 1)
        ):
            if mode == "strong" and workload.batch_per_gpu % scale.world_size:
                continue  # has a problem of its own
            batch, global_batch = batches(workload.batch_per_gpu, mode, scale.world_size)
            yield (
                f"{mode}/{scale}/r{repeat}",
                {
                    "batch_per_gpu": batch,
                    "global_batch": global_batch,
                    "lr": workload.lr,
                    "nodes": scale.nodes,
                    "gpus_per_node": scale.gpus_per_node,
                    "world_size": scale.world_size,
                    "seed": workload.seed + repeat - 1,
                },
            )

    def samples_per_step(self) -> Iterator[Problem]:
        """A whole number above 0 in every run."""
        text = self.workload.samples_per_step
        if text is None:
            return
        for run, numbers in self._numbers():
            try:
                samples = whole_number(text, {name: numbers[name] for name in _COUNTS})
                objection = "" if samples > 0 else f": {samples} ({run})"
            except ValueError as error:
                objection = f": {error} ({run})"
            if objection:
                yield Problem(
                    where=self.config.where("workload", "samples_per_step"),
                    what="not a number of samples",
                    found=shown(text) + objection,
                    allowed="whole numbers above 0 and "
                    + " ".join(f"{{{name}}}" for name in _COUNTS)
                    + ", with * / // between",
                    next="write how many samples one process consumes in one optimizer step, such as "
                    '"{batch_per_gpu} * 4"',
                )
                return

    def throughput_regex(self) -> Iterator[Problem]:
        """One that compiles, with exactly one group."""
        text = self.workload.throughput_regex
        if text is None:
            return
        try:
            groups: int | str = re.compile(text).groups
        except re.error as error:
            groups = str(error)
        if groups != 1:
            yield Problem(
                where=self.config.where("workload", "throughput_regex"),
                what="not a regular expression with one group",
                found=f"{shown(text)}: {groups if isinstance(groups, str) else f'{groups} groups'}",
                allowed="a Python regular expression whose one group is a number",
                next='put the number in parentheses, and others in (?:...): "throughput: ([0-9.]+) samples/s"',
            )
        if self.workload.samples_per_step is not None:
            yield Problem(
                where=self.config.where("workload", "throughput_regex"),
                what="two ways to know the throughput",
                found="throughput_regex and samples_per_step",
                allowed="one of them",
                next="set samples_per_step: null, or throughput_regex: null",
            )

    def _all_templates(self) -> Iterator[_Template]:
        workload = self.workload
        for index, text in enumerate(workload.args):
            yield _Template(self.config, ("workload", "args", index), text)
        for index, text in enumerate((workload.prepare or ())[1:], start=1):
            yield _Template(self.config, ("workload", "prepare", index), text, _PREPARE_NAMES)
        if workload.directory is not None:
            yield _Template(self.config, ("workload", "directory"), workload.directory)
        for name, text in workload.env.items():
            yield _Template(self.config, ("workload", "env", name), text)
        for variant in self.experiment.variants:
            for index, text in enumerate(variant.args):
                yield _Template(self.config, ("variants", variant.name, "args", index), text)
            for name, text in variant.env.items():
                yield _Template(self.config, ("variants", variant.name, "env", name), text)
        for name, text in self.site.network.env.items():
            yield _Template(self.cluster, ("network", "env", name), text)

    def _placeholder_problems(self, template: _Template, names: Sequence[str]) -> Iterator[Problem]:
        unknown = [name for name in names if name not in placeholders.NAMES]
        if unknown:
            yield _brace_problem(template, unknown[0])
            return
        for name in names:
            if name not in template.allowed:
                yield Problem(
                    where=template.where,
                    what="a placeholder that has no value here",
                    found=shown(template.text),
                    allowed=" ".join(f"{{{word}}}" for word in template.allowed),
                    next="write the value itself: data is prepared once, for every scale",
                )
            # prepare without data_dir has a problem of its own
            elif name == "data_dir" and self.workload.data_dir is None and template.path[1] != "prepare":
                yield _valueless(template, "data_dir", "data/digits")
            elif name == "lr" and self.workload.lr is None:
                yield _valueless(template, "lr", "0.05")

    def measure(self) -> Iterator[Problem]:
        measure = self.experiment.measure
        device = self.site.node.device
        warmup_steps = measure.warmup_steps_on(device)
        whence = f" (null, with device {device})" if measure.warmup_steps is None else ""
        needed = warmup_steps + measure.min_steps
        if measure.max_steps is not None and measure.max_steps < needed:
            yield Problem(
                where=self.config.where("measure", "max_steps"),
                what="runs would end before enough steps are measured",
                found=f"max_steps {measure.max_steps}, warmup_steps {warmup_steps}{whence}, "
                f"min_steps {measure.min_steps}",
                allowed=f"at least warmup_steps + min_steps = {needed}, or null",
                next=f"set max_steps: {needed} or more, or lower min_steps",
            )

    def variant_names(self) -> Iterator[Problem]:
        if any(variant.name == PLAIN_VARIANT for variant in self.experiment.variants):
            yield Problem(
                where=self.config.where("variants", PLAIN_VARIANT),
                what="this name is taken: it is that of the script without a launcher (measure.plain_baseline)",
                found=PLAIN_VARIANT,
                allowed=f"any name but {PLAIN_VARIANT}",
                next="give the variant another name",
            )

    def scales(self) -> Iterator[Problem]:
        for stage in self.experiment.stages:
            if stage.name == "stage1" and stage.scales != (Scale(1, 1),):
                yield self._stage1_problem(stage)
                continue
            for index, scale in enumerate(stage.scales):
                problem = (
                    self._shape_problem(stage, index, scale)
                    or self._size_problem(stage, index, scale)
                    or self._repeated_scale(stage, index, scale)
                )
                if problem:
                    yield problem

    def _stage1_problem(self, stage: Stage) -> Problem:
        return Problem(
            where=self.config.where("stages", "stage1", "scales"),
            what="stage 1 is one GPU, the baseline of every efficiency",
            found=_scale_list(stage.scales),
            allowed="[1x1]",
            next="set scales: [1x1]; one node goes into stage2, several nodes into stage3",
        )

    def _shape_problem(self, stage: Stage, index: int, scale: Scale) -> Problem | None:
        """A scale that belongs to another stage; so no scale can be in two stages."""
        where = self.config.where("stages", stage.name, "scales", index)
        if stage.name == "stage2" and (scale.nodes != 1 or scale.gpus_per_node < 2):
            target = "stage3" if scale.nodes > 1 else "stage1"
            return Problem(
                where=where,
                what="stage 2 is one node with several GPUs",
                found=str(scale),
                allowed="1x2, 1x3, ...: one node, two or more GPUs",
                next=f"move {scale} to stages.{target}"
                if target == "stage3"
                else f"remove {scale}: stage1 measures it",
            )
        if stage.name == "stage3" and scale.nodes < 2:
            return Problem(
                where=where,
                what="stage 3 is several nodes",
                found=str(scale),
                allowed=f"2x{scale.gpus_per_node}, 3x{scale.gpus_per_node}, ...: two or more nodes",
                next=f"move {scale} to stages.stage2"
                if scale.gpus_per_node > 1
                else f"remove {scale}: stage1 measures it",
            )
        return None

    def _size_problem(self, stage: Stage, index: int, scale: Scale) -> Problem | None:
        gpus = self.site.node.gpus
        if scale.gpus_per_node <= gpus:
            return None
        place = self.cluster.where("node", "gpus")
        advice = f"use at most {gpus} GPUs per node, or correct node.gpus if the nodes have more"
        if stage.name == "stage2" and gpus == 1:
            advice = "remove stages.stage2: a site with one GPU per node has none"
        return Problem(
            where=self.config.where("stages", stage.name, "scales", index),
            what=f"the scale asks for {scale.gpus_per_node} GPUs per node, the site has {gpus}",
            found=str(scale),
            allowed=f"at most {gpus} per node ({place})",
            next=advice,
        )

    def _repeated_scale(self, stage: Stage, index: int, scale: Scale) -> Problem | None:
        if scale not in stage.scales[:index]:
            return None
        return Problem(
            where=self.config.where("stages", stage.name, "scales", index),
            what="a scale twice",
            found=_scale_list(stage.scales),
            allowed="each scale once",
            next=f"remove one {scale}; to measure it more often raise repeats",
        )

    def gates(self) -> Iterator[Problem]:
        for stage in self.experiment.stages:
            if stage.name == "stage1" and stage.gate.min_efficiency is not None:
                yield Problem(
                    where=self.config.where("stages", "stage1", "gate", "min_efficiency"),
                    what="stage 1 is the baseline of the efficiency and cannot be judged by it",
                    found=str(stage.gate.min_efficiency),
                    allowed="min_samples_per_s and max_data_wait_fraction",
                    next="remove it here; set it in stage2 and stage3",
                )
            if stage.gate == GateThresholds(max_efficiency=stage.gate.max_efficiency, certain=True):
                yield Problem(
                    where=self.config.where("stages", stage.name, "gate", "certain"),
                    what="there is no threshold that could be certain",
                    found="certain: true",
                    allowed="certain together with min_efficiency, min_samples_per_s or max_data_wait_fraction",
                    next="set a threshold, or remove certain",
                )

    def may_differ(self) -> Iterator[Problem]:
        always = {item.name: item.reason for mode in self.experiment.modes for item in must_match(mode) if item.always}
        for index, name in enumerate(self.experiment.may_differ):
            if name in MAY_DIFFER:
                continue
            yield Problem(
                where=self.config.where("fingerprint", "may_differ", index),
                what=f"{name} may never differ: {always[name]}"
                if name in always
                else "not a field that is compared between runs",
                found=shown(name),
                allowed=", ".join(MAY_DIFFER),
                next=did_you_mean(name, MAY_DIFFER)
                or "remove it; the note of a scale that is not comparable names the fields that differ",
            )

    def strong_mode(self) -> Iterator[Problem]:
        if "strong" not in self.experiment.modes:
            return
        yield from self._indivisible_batch()
        yield from self._batch_without_placeholder()

    def _indivisible_batch(self) -> Iterator[Problem]:
        batch = self.workload.batch_per_gpu
        scales = [scale for stage in self.experiment.stages for scale in stage.scales]
        wrong = [scale for scale in scales if batch % scale.world_size]
        if not wrong:
            return
        multiple = math.lcm(*(scale.world_size for scale in scales))
        lower, upper = batch // multiple * multiple, -(-batch // multiple) * multiple
        better = f"{lower} or {upper}" if lower else str(upper)
        sizes = ", ".join(f"{scale} ({scale.world_size} GPUs)" for scale in wrong)
        yield Problem(
            where=self.config.where("workload", "batch_per_gpu"),
            what="strong mode cannot divide the global batch evenly",
            found=f"a global batch of {batch} over {sizes}",
            allowed=f"a multiple of {multiple}, which all scales divide",
            next=f"set batch_per_gpu: {better}, or remove the scale, or strong from modes",
        )

    def _batch_without_placeholder(self) -> Iterator[Problem]:
        without = [variant.name for variant in self.experiment.variants if not self._uses_batch(variant)]
        if without:
            yield Problem(
                where=self.config.where("workload", "args"),
                what="strong mode changes the batch per GPU, but the script is not told",
                found=f"no batch placeholder in the arguments and the environment of {', '.join(without)}",
                allowed="{batch_per_gpu} or {global_batch} in args or env of the workload or the variant",
                next='add for example --batch-size, "{batch_per_gpu}", or remove strong from modes',
            )

    def _uses_batch(self, variant: Variant) -> bool:
        # a simple search, because malformed templates are reported elsewhere
        texts = (*self.workload.args, *variant.args, *self.workload.env.values(), *variant.env.values())
        text = "\n".join(texts)
        return any(f"{{{name}}}" in text for name in _BATCH_NAMES)

    def environments(self) -> Iterator[Problem]:
        yield from _env_problems(self.workload.env, self.config, ("workload", "env"))
        for variant in self.experiment.variants:
            yield from _env_problems(variant.env, self.config, ("variants", variant.name, "env"))
        yield from _env_problems(self.site.network.env, self.cluster, ("network", "env"))

    def slurm(self) -> Iterator[Problem]:
        for stage in self.experiment.stages:
            yield from _extra_problems(stage.slurm, self.config, ("stages", stage.name, "slurm", "extra"))
        yield from _extra_problems(self.site.slurm, self.cluster, ("slurm", "extra"))

    def node(self) -> Iterator[Problem]:
        node = self.site.node
        if node.cpus < node.gpus:
            yield Problem(
                where=self.cluster.where("node", "cpus"),
                what="fewer CPU cores than GPUs: each GPU's process needs a core",
                found=f"cpus {node.cpus}, gpus {node.gpus}",
                allowed=f"at least {node.gpus}",
                next="set node.cpus to the cores that a job gets on one node (nproc shows them)",
            )

        if node.gres is not None and (problem := self._gres_problem(node.gres)):
            yield problem

    def _gres_problem(self, gres: str) -> Problem | None:
        kind, _, rest = gres.partition(":")
        *words, last = rest.split(":")
        where, allowed = self.cluster.where("node", "gres"), "gpu, or gpu:type such as gpu:a100, or null"
        if kind != "gpu":
            return Problem(
                where=where,
                what="not a GPU: a job asks for as many of it as the scale has GPUs",
                found=gres,
                allowed=allowed,
                next="set gres: gpu, or null where GPUs are not asked for",
            )
        # Types may be numbers too (gpu:3090), but no node has as many GPUs as that.
        is_count = last.isdecimal() and (bool(words) or int(last) <= _MOST_GPUS)
        if is_count:
            name = ":".join((kind, *words))
            gpus = self.site.node.gpus
            differs = "" if int(last) == gpus else f" (node.gpus is {gpus})"
            return Problem(
                where=where,
                what="a number of GPUs, which comes from the scale",
                found=gres + differs,
                allowed=allowed,
                next=f"set gres: {name}; a job on 1x2 then asks for {name}:2",
            )
        if words or gres.endswith(":"):
            return Problem(
                where=where,
                what="not written as Slurm names GPUs",
                found=gres,
                allowed=allowed,
                next="write what `sinfo --format=%G` shows, without its number",
            )
        return None

    def python(self) -> Iterator[Problem]:
        software = self.site.software
        python = software.python
        # What modules, setup or an image bring is not to be seen on this machine.
        elsewhere = software.container or (python and "/" not in python and (software.modules or software.setup))
        if python is not None and not elsewhere and shutil.which(python) is None:
            exists = Path(python).exists()
            yield Problem(
                where=self.cluster.where("software", "python"),
                what="not a program that can be run" if exists else "there is no such program",
                found=shown(python),
                allowed="a Python interpreter, or null for the one that runs the workflow",
                next="write the full path, as `which python` shows it where the training runs",
            )

    def container(self) -> Iterator[Problem]:
        container, path = self.site.software.container, ("software", "container")
        if container is None:
            return
        if self.site.software.python is None:
            yield Problem(
                where=self.cluster.where("software", "python"),
                what="the Python that runs the workflow is not in the container",
                found="python: null",
                allowed="the name or path of a Python inside the image",
                next="set software.python: python3, or the path that it has inside",
            )
        for index, argument in enumerate(container.args):
            if argument.partition("=")[0] in _ENVIRONMENT_TAKERS:
                yield Problem(
                    where=self.cluster.where(*path, "args", index),
                    what="it takes the run's environment away: ranks would not find each other, nor their run.json",
                    found=shown(argument),
                    allowed=f"options of `{container.engine} exec` that leave the environment as it is",
                    next="remove it; where the home directory is in the way, use --no-home",
                )

    def interfaces(self) -> Iterator[Problem]:
        interface = self.site.network.interface
        for node in () if isinstance(interface, str) else interface:
            if not _NODE.fullmatch(node):
                yield Problem(
                    where=self.cluster.where("network", "interface", node),
                    what="not a name that a node can have",
                    found=shown(node),
                    allowed="one node's name, as `sinfo --Node` shows it: letters, digits and . _ -",
                    next="write a line for each node, such as node01: eth0",
                )

    def backends(self) -> Iterator[Problem]:
        if self.site.node.device != "cpu":
            return
        if self.site.network.backend == "nccl":
            yield _nccl_problem(self.cluster.where("network", "backend"))
        for variant in self.experiment.variants:
            if variant.backend == "nccl":
                path = ("variants", variant.name, "network", "backend")
                yield _nccl_problem(self.config.where(*path))


def _nccl_problem(where: str) -> Problem:
    return Problem(
        where=where,
        what="NCCL needs GPUs, and the site has device: cpu",
        found="nccl",
        allowed="auto or gloo",
        next="set backend: auto, or node.device: cuda in the site's file if its nodes have GPUs",
    )


def _extra_problems(slurm: Slurm, document: Document, path: KeyPath) -> Iterator[Problem]:
    for index, item in enumerate(slurm.extra):
        if objection := sbatch_options.objection(item):
            where = document.where(*path, index)
            yield Problem(where, objection.what, shown(item), objection.allowed, objection.next)


def _file_problems(file: str, where: str, arguments: str) -> Iterator[Problem]:
    if "{" in file or "}" in file:
        yield Problem(
            where=where,
            what="a brace in a script's name: Snakemake takes it for a wildcard",
            found=shown(file),
            allowed="a file name without braces",
            next="rename the file; placeholders are for the arguments",
        )
    elif not Path(file).is_file():
        head = file.split()[0] if file.split() else file
        has_arguments = head != file and Path(head).is_file()
        yield Problem(
            where=where,
            what="there is no such script" if not Path(file).exists() else "not a file",
            found=shown(file),
            allowed=f"a file, relative to {os.getcwd()}",
            next=f"keep {head} here; its arguments go into {arguments}"
            if has_arguments
            else f"variables of the shell are not filled in here: {meant.path(file)}"
            if meant.has_variables(file)
            else "check the spelling and the directory; an absolute path works too",
        )


def _env_problems(env: Mapping[str, str], document: Document, path: KeyPath) -> Iterator[Problem]:
    for name, value in env.items():
        where = document.where(*path, name)
        if not _VARIABLE.fullmatch(name):
            yield Problem(
                where=where,
                what="not a name that an environment variable can have",
                found=shown(name),
                allowed="letters, digits and _, not starting with a digit",
                next=f"correct the name in {key_name(path)}",
            )
        elif name in OWN_VARIABLES or name.startswith(OWN_PREFIX):
            yield Problem(
                where=where,
                what="a variable that ddp-ladder sets for each process",
                found=shown(name),
                allowed=f"any variable but {', '.join(OWN_VARIABLES)} and {OWN_PREFIX}...",
                next="remove it",
            )
        elif re.search(rf"\$(?:{name}\b|\{{{name}\}})", value):
            yield Problem(
                where=where,
                what="a variable of the shell, which is not filled in here",
                found=shown(value),
                allowed="the whole value",
                next=f"move it to software.setup in cluster.yaml, which is shell: export {name}={shown(value)}",
            )


def _brace_problem(template: _Template, name: str = "") -> Problem:
    """Braces that are no placeholder; name: what stands between them, where that is known."""
    words = [f"{{{word}}}" for word in template.allowed]
    with_braces = re.sub(rf"\b(?:{'|'.join(NUMBERS)})\b", r"{\g<0>}", name)
    if is_arithmetic(with_braces):
        advice = f"put the braces around the names alone: {shown(with_braces)}"
    else:
        guess = did_you_mean(f"{{{name}}}", words) if re.fullmatch(r"\w+", name) else None
        closed = template.text.count("{") == template.text.count("}")
        keep = f"{'' if closed else 'close the placeholder, or '}double the braces that are to stay"
        advice = guess or f"{keep}: {_in_quotes(literal(template.text))}"
        if "${" in template.text:
            advice = f"write out what a variable of the shell stands for, it is not filled in here; or {advice}"
    return Problem(
        where=template.where,
        what="braces that are no placeholder",
        found=shown(template.text),
        allowed=f"{' '.join(words)}, and {{{{ and }}}} for literal braces",
        next=advice,
    )


def _in_quotes(text: str) -> str:
    """Text as it is typed into YAML."""
    return shown(text) if "'" in text or not text.isprintable() else f"'{text}'"


def _valueless(template: _Template, name: str, example: str) -> Problem:
    return Problem(
        where=template.where,
        what=f"{{{name}}} is used, but workload.{name} is null",
        found=shown(template.text),
        allowed=f"{{{name}}} together with a value of workload.{name}",
        next=f"set workload.{name}, for example {name}: {example}, or remove the argument",
    )


def _scale_list(scales: tuple[Scale, ...]) -> str:
    return f"[{', '.join(str(scale) for scale in scales)}]"
