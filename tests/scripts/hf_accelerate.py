"""Hugging Face accelerate: its loaders draw one batch ahead and pad the last ones; with its own accumulation."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from tally import Tally, think
from torch.utils.data import DataLoader, TensorDataset


def main(kind):
    configuration = DataLoaderConfiguration(split_batches=kind == "split")
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, dataloader_config=configuration)
    length = 16 * 5 * accelerator.num_processes + 7
    data = TensorDataset(torch.arange(length), torch.randn(length, 4))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    size = 5 * accelerator.num_processes if kind == "split" else 5
    loader = DataLoader(data, batch_size=size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    tally = Tally()
    for _ in range(2):
        highest = -1
        tally.start()
        for index, x in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(x).square().mean())
                think(0.006)
                tally.seen(len(index[index > highest]))  # what is filled up comes from the beginning
                highest = max(highest, int(index.max()))
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                tally.step()
        tally.leave_epoch()
    tally.write()
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
