"""FLOPs and matrix rates on a GPU, where the backward pass runs in a thread of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from ddp_ladder.analysis.decisions import peaks
from ddp_ladder_instrument.contract import WITNESS
from ddp_ladder_probe.matrix_rate import rates
from instrument_support import run, script

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU here")]

WIDTH, LAYERS = 1024, 4
PRODUCT = 2 * WIDTH**2
TRAIN = f"""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.backends.cuda.matmul.allow_tf32 = True
    model = torch.nn.Sequential(*[torch.nn.Linear({WIDTH}, {WIDTH}) for _ in range({LAYERS})]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for (x,) in DataLoader(TensorDataset(torch.randn(64 * 40, {WIDTH})), batch_size=64):
        optimizer.zero_grad()
        AUTOCAST
        loss.backward()
        optimizer.step()
"""
PLAIN = "loss = model(x.cuda()).square().mean()"
AMP = f"with torch.autocast('cuda', torch.bfloat16): {PLAIN}"


@pytest.mark.parametrize(("forward", "precision"), [(PLAIN, "tf32"), (AMP, "bf16")])
def test_the_backward_pass_is_counted_in_its_thread(tmp_path: Path, forward: str, precision: str) -> None:
    program = script(tmp_path, TRAIN.replace("AUTOCAST", forward))
    done = run(tmp_path, program, is_witness=True)
    assert done.code == 0, done.err
    found = json.loads((tmp_path / "run/ranks" / WITNESS.format(0)).read_text())["flops"]
    assert "why" not in found
    assert found["forward"] == LAYERS * PRODUCT
    assert found["backward"] == (2 * LAYERS - 1) * PRODUCT
    assert found["precisions"] == {precision: 1.0}


def test_the_matrix_rates_are_below_the_peaks_of_the_data_sheet() -> None:
    measured = dict(rates(torch.device("cuda", 0)))
    assert {"fp32", "fp16"} <= measured.keys()
    for precision, peak in peaks(torch.cuda.get_device_name()).items():
        # Clocks are lower under load: half the peak, at least.
        assert 0.5 * peak < measured[precision] < 1.05 * peak
