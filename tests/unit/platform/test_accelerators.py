"""Another accelerator is a class, and its place among the others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

from ddp_ladder.common.files import SCRIPTS

# Intel's GPUs as torch names them, in a process of its own: the keys of the settings are made from the registry.
XPU = """
import json
from dataclasses import replace
from pathlib import Path

from ddp_ladder.platform.accelerators import ACCELERATORS, is_gpu
from ddp_ladder.platform.accelerators import Accelerator, NodeGpu

class Xpu(Accelerator):
    name, is_for, title, backend = "xpu", "for Intel GPUs", "SYCL", "xccl"
    visible_variable, program = "ZE_AFFINITY_MASK", "xpu-smi"

    def gpus(self, within_s=1.0):
        return (NodeGpu(index=0, uuid="u0", name="Max 1550", driver="1.6", power_limit_w=600, memory_used_mib=0),)

xpu = ACCELERATORS["xpu"] = Xpu()

from ddp_ladder.live.doctor import judge_python
from ddp_ladder.node.launch import Places, node_environment
from ddp_ladder.plan.plan import make_plan
from ddp_ladder.preflight.nodes import gpus_facts
from ddp_ladder.settings.keys import Node
from ddp_ladder.settings.load import load_settings
from ddp_ladder.settings.load import CLUSTER, CONFIG

settings = load_settings(CONFIG, CLUSTER)
node = Node.from_json({"gpus": 2, "device": "xpu", "cpus": 8})
plan = make_plan(replace(settings, site=settings.site.replace(node=node)))
spec = plan.runs[0]

def hidden(spec):
    env = node_environment(spec, Places(Path("/p"), Path("/p/r")), {}, Path("run.json"), "lo", 0.0)
    return [env.get(name) for name in ("ZE_AFFINITY_MASK", "CUDA_VISIBLE_DEVICES")]

python = {"python": [3, 11, 0], "executable": "/p", "torch": "2.9.0", "built_for": None}
print(json.dumps({
    "backend": spec.backend,
    "hidden": [hidden(spec), hidden(spec.replace(device="cpu"))],
    "visible": [gpu.name for gpu in gpus_facts(xpu).visible(xpu)],
    "monitor": xpu.monitor({}).notes,
    "torch": [finding.measured for finding in judge_python(python, "python3", "x", xpu)][-1],
    "unit": plan.hour_unit.device,
}))
"""


def test_an_accelerator_of_which_the_workflow_has_not_heard() -> None:
    env = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    done = subprocess.run([sys.executable, "-c", XPU], env=env, cwd=SCRIPTS.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "backend": "xccl",
        "hidden": [[None, None], ["", ""]],  # a site without GPUs hides all that a node may have
        "visible": ["Max 1550"],
        "monitor": ["GPUs: not sampled, nothing here reads those of device xpu"],
        "torch": "2.9.0 is built without SYCL, and node.device is xpu",
        "unit": "GPU",
    }


def test_one_module_of_the_training_process_says_torch_cuda() -> None:
    parts = [file for name in ("instrument", "probe") for file in SCRIPTS.glob(f"ddp_ladder_{name}/*.py")]
    assert {file.name for file in parts if re.search(r"torch\.cuda|\.is_cuda|== \"cuda\"", file.read_text())} == {
        "__init__.py",  # which says so
        "accelerator.py",
    }
