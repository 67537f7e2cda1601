"""A small GPT: get_batch instead of a DataLoader, micro-steps, gradient clipping, an estimate of the loss."""

import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from tally import Tally, think
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

BATCH, BLOCK, MICRO_STEPS, ITERATIONS, EVERY = 4, 16, 2, 24, 8
VOCABULARY, WIDTH, HEADS = 32, 16, 2


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.block(self.tokens(ids) + self.places(torch.arange(ids.shape[1])), src_mask=mask, is_causal=True)
        logits = self.head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(text):
    starts = torch.randint(len(text) - BLOCK - 1, (BATCH,)).tolist()
    return (torch.stack([text[s + shift : s + shift + BLOCK] for s in starts]) for shift in (0, 1))


@torch.no_grad()
def estimate_loss(model, text):
    model.eval()
    losses = []
    for _ in range(3):
        losses.append(model(*get_batch(text))[1].item())
        think(0.01)
    model.train()
    return sum(losses) / len(losses)


def main():
    ddp = int(os.environ.get("RANK", -1)) != -1
    if ddp:
        init_process_group("gloo")
    torch.manual_seed(1337 + int(os.environ.get("RANK", 0)))
    text = torch.randint(0, VOCABULARY, (2000,))
    model = GPT()
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}])
    if ddp:
        model = DistributedDataParallel(model)
    tally = Tally()
    tally.start()
    x, y = get_batch(text)
    for iteration in range(ITERATIONS):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * 0.5 * (1 + math.cos(math.pi * iteration / ITERATIONS))
        if iteration % EVERY == 4:
            tally.stop()
            print(f"step {iteration}: loss {estimate_loss(model, text):.4f}")
            tally.start()
        for micro in range(MICRO_STEPS):
            if ddp:
                model.require_backward_grad_sync = micro == MICRO_STEPS - 1
            loss = model(x, y)[1] / MICRO_STEPS
            tally.seen(len(x))
            x, y = get_batch(text)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        think(0.004)
        optimizer.step()
        tally.step()
        optimizer.zero_grad(set_to_none=True)
    tally.write()
    if ddp:
        destroy_process_group()


if __name__ == "__main__":
    main()
