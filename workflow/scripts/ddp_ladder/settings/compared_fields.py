"""The fields that must be equal before one run's throughput is divided by another's, and why."""

from __future__ import annotations

from collections.abc import Mapping

REASONS: Mapping[str, str] = {
    "script": "another program does other work per sample",
    "script_sha256": "an edited script may do other work per sample",
    "sources": "an edited module may do other work per sample",
    "configuration": "another configuration file may change the work per sample",
    "args_template": "other arguments change the work per sample",
    "parameter_dtype": "lower precision is faster and moves fewer bytes",
    "autocast_dtype": "mixed precision alone can double the throughput",
    "product_dtypes": "matrix products in lower precision are faster",
    "float32_products": "TF32 alone can double the throughput",
    "compiled": "torch.compile alone can double the throughput",
    "parameters": "another model does other work per sample",
    "optimizer": "optimizers differ in work and memory traffic per step",
    "num_workers": "a baseline that waits for data makes every larger scale look good",
    "torch": "kernels and DDP differ between releases",
    "cuda": "kernels differ between releases",
    "nccl": "collectives differ between releases",
    "cudnn": "kernels differ between releases",
    "libraries": "libraries differ between releases",
    "driver": "kernels run differently under another driver",
    "python": "data loading and launch overhead run in Python",
    "rank_order": "rings follow the ranks, and cross the network more often in another order",
    "device": "a CPU process is no baseline for a GPU",
    "gpu": "other models have another speed",
    "power_limit_w": "a GPU with a lower power limit is slower",
    "cpu_model": "other models load data, and on CPU compute, at another speed",
    "threads": "a baseline with more threads per rank has more hardware per rank",
    "threads_per_rank": "a baseline with more threads per rank has more hardware per rank",
    "steps": "the same settings make as many steps, or consume as many samples: a run that did neither did other work",
    "batch_per_gpu": "weak scaling keeps the work per GPU constant",
    "global_batch": "strong scaling keeps the work per step constant",
}
"""By field: why throughputs with different values of it are not compared."""

NEVER_DIFFER = frozenset({"device", "batch_per_gpu", "global_batch"})
"""A ratio across these has no meaning."""

MAY_DIFFER = tuple(name for name in REASONS if name not in NEVER_DIFFER)
"""Fields that fingerprint.may_differ in config.yaml can name."""
