"""Batches that do not hold what the sampler gave, or do not show how many samples they hold."""

import sys

import torch
from ranks import together
from tally import Tally, think
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

KIND, WORKERS = sys.argv[1], int(sys.argv[2])
BATCH = 8


def without_bad(samples):
    """Leave out every eighth sample, wherever it is in the batch; a random one in eight is bad."""
    return default_collate([sample for sample in samples if sample[0] % 8 != 5])


def rarely_bad(samples):
    return default_collate([sample for sample in samples if sample[0] != 101])


def in_one_row(samples):
    """One row without padding, as the collators for FlashAttention make it."""
    return {"x": torch.cat([x[:2] for _, x in samples])[None]}


class Packed(IterableDataset):
    """Four rows, into which eight sequences are packed."""

    def __iter__(self):
        for _ in range(20):
            yield {"cu_seqlens": torch.arange(9), "x": torch.randn(4, 4)}


def make_loader():
    data = TensorDataset(torch.arange(160), torch.randn(160, 4))
    if KIND == "packed":
        return DataLoader(Packed(), batch_size=None, num_workers=WORKERS)
    collate = {"dropping": without_bad, "rare": rarely_bad, "one_row": in_one_row}[KIND]
    return DataLoader(data, BATCH, shuffle=True, collate_fn=collate, num_workers=WORKERS)


def main():
    model = together(torch.nn.Linear(2 if KIND == "one_row" else 4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tally = Tally()
    for _ in range(2):
        tally.start()
        for batch in make_loader():
            x = batch["x"] if isinstance(batch, dict) else batch[1]
            if KIND == "one_row":
                x = x.reshape(BATCH, 2)
            model(x).square().mean().backward()
            think()
            tally.seen(len(x))
            optimizer.step()
            optimizer.zero_grad()
            tally.step()
        tally.leave_epoch()
    tally.write()


if __name__ == "__main__":
    main()
