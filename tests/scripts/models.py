"""Training loops whose FLOPs are known: argument 1 is the model, argument 2 the loop."""

import sys

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

BATCH, STEPS = 4, 10
CLASSES, WIDTH, HEADS, LENGTH, LAYERS, WORDS = 10, 64, 4, 96, 2, 1000


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        heads = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(seen.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(nn.functional.layer_norm(x, (WIDTH,)))
        return x + self.mlp(nn.functional.layer_norm(x, (WIDTH,)))


class Again(torch.autograd.Function):
    """What computes its activations again in the backward pass, as DeepSpeed and Megatron do."""

    @staticmethod
    def forward(ctx, block, x):
        ctx.block = block
        ctx.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.block(x)
        torch.autograd.backward(y, gradient)
        return None, x.grad


class Transformer(nn.Module):
    def __init__(self, recompute):
        super().__init__()
        self.recompute = recompute
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x):
        x = self.words(x)
        for block in self.blocks:
            reentrant = self.recompute == "reentrant"
            if self.recompute == "own":
                x = Again.apply(block, x)
            else:
                x = checkpoint(block, x, use_reentrant=reentrant) if self.recompute else block(x)
        return self.head(x).mean(1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])


def made(name):
    """Return the model and one sample of its input."""
    words = torch.randint(WORDS, (LENGTH,))
    if name == "mlp":
        return nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, CLASSES)), torch.randn(100)
    if name == "resnet50":
        from torchvision.models import resnet50

        return resnet50(), torch.randn(3, 224, 224)
    if name == "grouped":
        layers = nn.Conv2d(8, 32, 3, padding=1, groups=8), nn.Flatten(), nn.Linear(32 * 64, CLASSES)
        return nn.Sequential(*layers), torch.randn(8, 8, 8)
    if name == "recurrent":
        return Recurrent(), torch.randn(5, 8)
    return Transformer(name.partition(" ")[2]), words


def main(name, loop):
    batch = 1 if name == "resnet50" else BATCH
    model, sample = made(name)
    data = sample.expand(batch * STEPS, *sample.shape)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-4)
    teacher, _ = made(name)
    if loop == "compiled":
        model = torch.compile(model, backend="eager")
    if loop == "kernel":
        torch.library.define("ours::doubled", "(Tensor x) -> Tensor")
        torch.library.impl("ours::doubled", "cpu", lambda x: 2 * x)
    for index, x in enumerate(DataLoader(data, batch_size=batch)):
        with torch.autocast("cpu", torch.bfloat16, enabled=loop == "autocast"):
            loss = model(x).float().square().mean()
        if loop == "teacher":
            with torch.inference_mode():
                teacher(x)
        if loop == "kernel":
            torch.ops.ours.doubled(x)
        if loop == "lengths" and index % 2:
            loss = loss + model(x).square().mean()
        if loop == "very long" and index == 5:
            loss = loss + sum(model(x).square().mean() for _ in range(20))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loop == "uneven" and index % 4 == 3:
            other.step()
        if loop == "validates":
            model.eval()
            with torch.no_grad():
                model(x)
            model.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
