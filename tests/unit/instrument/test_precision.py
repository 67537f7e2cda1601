"""The precision of float32 products, by the settings of torch 2.9 and newer and by the older ones; in real processes,
as torch keeps them for the whole process.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from ddp_ladder_instrument import accelerator, flops
from ddp_ladder_instrument.contract import WITNESS
from instrument_support import INSTRUMENT, NEWEST, python_named, run, run_plainly, script

ON_CUDA = f"""
    import os, sys
    sys.path.insert(0, {str(INSTRUMENT.parent)!r})
    import torch
    from ddp_ladder_instrument.accelerator import float32_products
    for line in sys.argv[1:]:
        if os.fork() == 0:
            exec(line)
            print(float32_products(on_gpu=True), flush=True)
            os._exit(0)
        os.wait()
"""
OF_TORCH_2_9 = {
    "": "highest, TF32 convolutions",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'": "high, TF32 convolutions",
    "torch.backends.fp32_precision = 'tf32'": "high, TF32 convolutions",
    "torch.backends.fp32_precision = 'ieee'": "highest",
    "torch.backends.cudnn.conv.fp32_precision = 'ieee'": "highest, TF32 recurrent layers",
    "torch.backends.cudnn.rnn.fp32_precision = 'ieee'": "highest, TF32 convolutions, float32 recurrent layers",
    "torch.backends.cudnn.conv.fp32_precision = 'none'; torch.backends.cudnn.rnn.fp32_precision = 'ieee'": "highest",
    "torch.backends.cuda.matmul.allow_tf32 = True": "high, TF32 convolutions",
    "torch.set_float32_matmul_precision('high'); torch.backends.cudnn.allow_tf32 = False": "high",
}
OLDER = {
    "": "highest, TF32 convolutions",
    "torch.backends.cuda.matmul.allow_tf32 = True": "high, TF32 convolutions",
    "torch.set_float32_matmul_precision('medium'); torch.backends.cudnn.allow_tf32 = False": "medium",
}


@pytest.mark.parametrize(("version", "products"), [("newest", OF_TORCH_2_9), ("oldest", OLDER)])
def test_the_settings_for_cuda(tmp_path: Path, version: str, products: dict[str, str]) -> None:
    done = run_plainly(tmp_path, script(tmp_path, ON_CUDA), *products, python=python_named(version))
    assert dict(zip(products, done.out.splitlines(), strict=True)) == products, done.err


TRAIN = """
    import torch
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(80, 8)), 4):
        model(x).sum().backward()
        optimizer.step()
"""


def test_a_script_with_new_settings_keeps_its_flops(tmp_path: Path) -> None:
    record = run(tmp_path, script(tmp_path, TRAIN), python=NEWEST, is_witness=True).rank()
    assert record["fingerprint"]["float32_products"] == "medium"
    assert record["not_measured"] == []
    assert json.loads((tmp_path / "run/ranks" / WITNESS.format(0)).read_text())["flops"]["forward"] == 2 * 8 * 8


def test_flops_of_an_unread_precision_are_kept_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "has_tf32", lambda: True)
    found = [flops._precision(torch.float32, False, products, True) for products in ("highest", "high", None)]
    assert found == ["fp32", "tf32", "fp32 or tf32"]
    assert flops._precision(torch.bfloat16, False, None, True) == "bf16"
    recurrent = flops._precision(torch.float32, True, "highest, TF32 recurrent layers", True)
    assert recurrent == "fp32"  # a convolution is none
