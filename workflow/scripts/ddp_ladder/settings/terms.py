"""Plain names and types of the settings, for those who read no settings file; and placeholders."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Mode = Literal["weak", "strong"]
WrapperPer = Literal["rank", "node"]
NumaBinding = Literal["exclusive", "node", "socket", "core-complex"]  # modes of torchrun's --numa-binding
Transport = Literal["any", "ib", "ofi", "socket"]  # as NCCL names its network: NET/IB (RoCE too), NET/OFI, NET/Socket
Interface = str | Mapping[str, str]  # "auto", a name, or a name for each node

_MIG = re.compile(r"mig|\d+g\.\d+gb", re.IGNORECASE)  # gpu:1g.10gb, gpu:a100_3g.20gb, gpu:mig-1g.5gb

STAGES = ("stage1", "stage2", "stage3")
PRODUCTION: Final = "production"  # a chain of jobs, in a job's place of the stage
REHEARSAL: Final = "rehearsal"  # and its test
REFERENCE_VARIANT = "default"
PLAIN_VARIANT = "plain"
"""The default variant's script at 1x1 without a launcher: the baseline for the cost of DDP itself."""
MOST_REPEATS = 100
MOST_GPUS = 128  # of one node
DEFAULT_LOG_MB = 100
MOST_EFFICIENCY = 1.05  # above this, a baseline is suspect
JOBS_DIFFER_PERCENT = 2  # usual standard deviation of the throughput between jobs
LEAST_EVERY_S = 0.2  # from one sample of a node to the next


def is_mig(gres: str) -> bool:
    """Return True if Slurm's name of a GPU is one of MIG slices, as NVIDIA and sites name them."""
    return _MIG.search(gres) is not None


def runtime_key(stage: str) -> str:
    """Return the key of config.yaml that sets the time limit of the jobs of a stage, or of production."""
    if stage == REHEARSAL:
        return "production.rehearse_s"
    return "production.runtime" if stage == PRODUCTION else f"stages.{stage}.runtime"


@dataclass(frozen=True, order=True)
class Scale:
    """A scale, nodes x GPUs per node, written ``2x4``."""

    nodes: int
    gpus_per_node: int

    @property
    def world_size(self) -> int:
        return self.nodes * self.gpus_per_node

    @classmethod
    def parse(cls, text: str) -> Scale:
        """Read ``2x4``. Raises ValueError for anything else."""
        nodes, gpus = text.split("x")
        return cls(int(nodes), int(gpus))

    def __str__(self) -> str:
        return f"{self.nodes}x{self.gpus_per_node}"


ONE_GPU = Scale(1, 1)  # where a ladder starts, unless stages.stage1.scales names another scale


def interface_on(interface: Interface, node: str) -> str:
    """Return the interface of one node; ``auto`` if a map leaves the node out."""
    return interface if isinstance(interface, str) else interface.get(node, "auto")


def batches(
    batch_per_gpu: int, mode: str, world_size: int, first_size: int, fixed: int | None = None
) -> tuple[int, int]:
    """Return (batch per GPU, global batch): weak mode keeps the first as at the first scale, strong mode the second.

    first_size: GPUs of the first scale, for which batch_per_gpu is given. fixed: workload.global_batch; each GPU then
    accumulates batches of its own to it.
    """
    if fixed is not None:
        return batch_per_gpu, fixed
    if mode == "weak":
        return batch_per_gpu, batch_per_gpu * world_size
    return batch_per_gpu * first_size // world_size, batch_per_gpu * first_size


def scaled_lr(lr: float | None, rule: str, growth: float) -> float | None:
    """Return the learning rate of the first scale, scaled by a rule. growth: of the global batch since."""
    if lr is None:
        return None
    return lr * {"linear": growth, "sqrt": math.sqrt(growth), "none": 1.0}[rule]


# Fields that must be equal before one run's throughput is divided by another's

MAY_DIFFER = (
    # what is computed for a sample, and how
    "script", "script_sha256", "sources", "configuration", "args_template", "parameter_dtype", "autocast_dtype",
    "float32_products", "compiled", "parameters", "optimizer", "slow_settings", "tokens_per_sample",
    # a baseline that waits for data, or has more cores per rank, makes larger scales look good or bad
    "num_workers", "threads", "threads_per_rank",
    # kernels and collectives differ between releases
    "torch", "cuda", "nccl", "backend_class", "cudnn", "libraries", "driver", "python",
    # what is sent in a step
    "exchanges",
    # the hardware
    "gpu", "power_limit_w", "cpu_model",
    # the same settings make as many steps, or consume as many samples
    "steps",
)  # fmt: skip
"""Fields that fingerprint.may_differ in config.yaml can name; a ratio across another device or batch has no meaning."""


# --- Placeholders: ``{lr}`` becomes a value, ``{nodes} * 4`` a number, ``{{`` and ``}}`` are literal braces.


NUMBER_PLACEHOLDERS = (
    "batch_per_gpu", "global_batch", "accumulation", "lr", "nodes", "gpus_per_node", "world_size", "threads_per_rank",
)  # fmt: skip
PATH_PLACEHOLDERS = ("run_dir", "data_dir", "start_dir")
PLACEHOLDERS = (*NUMBER_PLACEHOLDERS, *PATH_PLACEHOLDERS, "seed", "backend")

_TOKEN = re.compile(r"(?P<escaped>\{\{|\}\})|\{(?P<name>[^{}]*)\}|(?P<stray>[{}])")

# A quotient needs spaces, because {seed}/{nodes} may be a directory, or a shard such as 1/4.
_OPERAND = rf"(?:\{{(?:{'|'.join(NUMBER_PLACEHOLDERS)})\}}|[0-9]+(?:\.[0-9]+)?)"
_OPERATOR = r"(?: *(?:\*|//) *| +/ +)"
_ARITHMETIC = re.compile(rf"(?P<head>[^\s{{}}=]+=)?(?P<terms>{_OPERAND}(?:{_OPERATOR}{_OPERAND})+)")


def expand(template: str, values: Mapping[str, object]) -> str:
    """Return the template with ``values`` filled in, and a product or quotient of whole numbers computed.

    Only plain names are placeholders (``{a.b}``, ``{a[0]}`` and ``{0}`` are unknown names), and values are not expanded
    again. Raises ValueError for a name that is unknown or has no value, for an unmatched brace, and for a product or
    quotient that is not a whole number.
    """
    if "{" in template and (product := _ARITHMETIC.fullmatch(template)):
        return (product["head"] or "") + str(whole_number(product["terms"], values))
    return _TOKEN.sub(lambda token: _filled(token, values), template)


def _filled(token: re.Match[str], values: Mapping[str, object]) -> str:
    name = token["name"]
    if token["escaped"]:
        return token["escaped"][0]
    if token["stray"]:
        raise ValueError(f"{token['stray']} without its partner")
    if name not in PLACEHOLDERS:
        raise ValueError(f"unknown placeholder {{{name}}}")
    if values.get(name) is None:
        raise ValueError(f"placeholder {{{name}}} has no value")
    return str(values[name])


def whole_number(terms: str, values: Mapping[str, object]) -> int:
    """Compute ``64 * {nodes} // 2`` from left to right.

    ``//`` rounds down, ``/`` must divide evenly. Raises ValueError if a part is not a whole number.
    """
    first, *rest = re.split(rf"({_OPERATOR})", terms.strip())
    result = _operand(first, values)
    for operator, text in zip(rest[::2], rest[1::2], strict=True):
        operand = _operand(text, values)
        if operator.strip() == "*":
            result *= operand
        elif operand == 0 or (operator.strip() == "/" and result % operand):
            raise ValueError(f"{result} {operator.strip()} {operand} is not a whole number")
        else:
            result //= operand
    return result


def _operand(text: str, values: Mapping[str, object]) -> int:
    number = expand(text, values)
    if not (number.isascii() and number.isdigit()):
        raise ValueError(f"{number} is not a whole number")
    return int(number)
