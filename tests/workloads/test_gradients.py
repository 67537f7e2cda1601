"""DDP on n ranks with the global batch B gives the gradients, and the score, of one process with the batch B."""

from __future__ import annotations

from typing import Any

import cifar
import mlp
import mnist
import pytest
import torch
import torch.nn.functional as F
from rank_support import on_ranks
from torch import Tensor, nn

import common
from common import Precision, Training, World, process_group

SAMPLES = 72
BATCH = 24  # of all ranks together
MODELS = ("mlp", "mnist", "cifar")
SCORED = (1, 50)


def model_and_data(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(3)
    if name == "mlp":
        return mlp.SimpleModel().double(), torch.randn(SAMPLES, 10).double(), torch.randint(2, (SAMPLES,))
    if name == "mnist":
        # Without dropout, whose masks are each rank's own.
        model = mnist.Net(8)
        model.features[5].p = model.classifier[3].p = 0.0  # type: ignore[assignment]
        return model.double(), torch.randn(SAMPLES, 1, 8, 8).double(), torch.randint(10, (SAMPLES,))
    model = cifar.WideResNet(10, 1, 10)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # its statistics are each rank's own
            module.track_running_stats = True
            module.eval()
            module.train = lambda mode=True, module=module: module  # type: ignore[assignment, misc, method-assign]
    return model.double(), torch.randn(SAMPLES, 3, 32, 32).double(), torch.randint(10, (SAMPLES,))


class Keep(torch.optim.SGD):
    """Keeps the gradients of its first step, and changes nothing."""

    kept: list[Tensor]

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        if not hasattr(self, "kept"):
            self.kept = [p.grad.clone() for group in self.param_groups for p in group["params"]]


def first_gradient(name: str, accumulate: int, world: World) -> list[Tensor]:
    """Of the first step of an epoch, as the workloads' own loop computes it."""
    model, inputs, labels = model_and_data(name)
    wrapped = common.distribute(model, world)
    optimizer = Keep(wrapped.parameters(), lr=0.0)
    training = Training(wrapped, optimizer)
    recipe = common.Recipe(lambda x: x, F.cross_entropy, Precision("fp32", world.device), accumulate)
    share = BATCH // world.size
    loader = common.train_loader(common.Resident(inputs, labels, world.device), share, world, seed=1, workers=0)
    common.begin_epoch(loader, 0)
    inputs, labels = next(iter(loader))
    # Unequal parts of the step, as at the end of an epoch.
    parts = [share] if accumulate == 1 else [share - share // 3, share // 3]
    training.model.train()
    common.train_step(training, recipe, list(zip(inputs.split(parts), labels.split(parts), strict=True)))
    return optimizer.kept


def rank_results() -> dict[Any, Any]:
    """All that the tests below compare, from one process group."""
    with process_group() as world:
        gradients = {(name, parts): first_gradient(name, parts, world) for name in MODELS for parts in (1, 2)}
        scores = {samples: score(samples, world) for samples in SCORED}
        return {**gradients, **scores, "world": world, "buffers": agreed_buffers(world)}


def score(samples: int, world: World) -> common.Score:
    model, inputs, labels = model_and_data("mnist")
    model = common.distribute(model, world)
    loader = common.test_loader(common.Resident(inputs[:samples], labels[:samples], world.device), 7, world, 0)
    return common.evaluate(model, loader, lambda x: x, Precision("fp32", world.device), world.device)


def agreed_buffers(world: World) -> list[Tensor]:
    model = common.distribute(nn.Sequential(nn.BatchNorm1d(3)), world)
    model(torch.randn(8, 3) + world.rank)
    common.agree_on_buffers(model)
    return [buffer.clone() for buffer in model.buffers()]


@pytest.fixture(scope="module", params=[1, 3])
def ranks(request: pytest.FixtureRequest) -> list[dict[Any, Any]]:
    """What each rank found, alone or in a group of three."""
    return on_ranks(request.param, rank_results)


def reference(name: str) -> list[Tensor]:
    """One process, the whole batch, plain PyTorch. A rank's samples are every n-th, so all of them are the first B."""
    model, inputs, labels = model_and_data(name)
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(1))[:BATCH]
    model.train()
    F.cross_entropy(model(inputs[order]), labels[order]).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_one_process(ranks: list[dict[Any, Any]], name: str, parts: int) -> None:
    expected = reference(name)
    assert sum(float(gradient.norm()) for gradient in expected) > 0
    for rank in ranks:
        gradients = rank[name, parts]
        assert len(gradients) == len(expected)
        for found, wanted in zip(gradients, expected, strict=True):
            assert torch.norm(found - wanted) <= 1e-10 * torch.norm(wanted)


@pytest.mark.parametrize("samples", SCORED)
@torch.no_grad()
def test_validation_counts_each_sample_once(ranks: list[dict[Any, Any]], samples: int) -> None:
    """Also where some ranks have fewer samples than others, or none."""
    model, inputs, labels = model_and_data("mnist")
    model.eval()
    logits = model(inputs[:samples])
    right = int((logits.argmax(dim=1) == labels[:samples]).sum())
    for rank in ranks:
        assert rank[samples].samples == samples
        assert rank[samples].accuracy == right / samples
        assert rank[samples].loss == pytest.approx(float(F.cross_entropy(logits, labels[:samples])), rel=1e-12)


def test_all_ranks_evaluate_with_the_first_ones_running_averages(ranks: list[dict[Any, Any]]) -> None:
    for rank in ranks:
        assert all(torch.equal(a, b) for a, b in zip(rank["buffers"], ranks[0]["buffers"], strict=True))
        assert float(rank["buffers"][0].abs().max()) < 0.09  # of another rank's inputs it would be 0.1 and more
