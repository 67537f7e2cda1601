"""The preflight with real ranks on this machine: an all-reduce that returns a wrong value."""

from __future__ import annotations

from project_copy import Checkout, last_box

# The all-reduce of one rank adds 1 to an element of every message from 16 KiB on.
WRONG_ALL_REDUCE = """
import importlib.machinery, os, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name != "torch.distributed":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            real = module.all_reduce
            def all_reduce(tensor, *args, **options):
                done = real(tensor, *args, **options)
                if os.environ["RANK"] == "1" and tensor.numel() > 1024:
                    tensor[7] += 1
                return done
            module.all_reduce = all_reduce
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


def test_a_wrong_sum_closes_the_gate_and_starts_no_run(checkout: Checkout) -> None:
    wrong = checkout.path / "wrong"
    wrong.mkdir()
    (wrong / "sitecustomize.py").write_text(WRONG_ALL_REDUCE)
    checkout.configure(preflight={"enabled": True})
    checkout.site(software={"setup": f"export PYTHONPATH={wrong}"}, launcher="srun")
    assert "stage2 1x2: ERROR" in checkout.measure("1x2")
    assert not list((checkout.results / "runs").rglob("run.json"))
    judged = checkout.script("gate.py", "--stage", "stage2")
    assert judged.returncode == 1
    box = last_box(judged.stdout.rpartition("written:")[0].strip())
    assert "an all-reduce of 16384 bytes returned wrong values on rank 1" in box["why"]
    assert "1 of 2048 elements are wrong, element 7 is" in box["why"]
    assert box["verdict"].startswith("the preflight failed (")
    assert "network.env in cluster.yaml" in box["next"]
    assert checkout.processes() == []
