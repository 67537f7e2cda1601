"""Hugging Face accelerate: its loaders draw one batch ahead and fill up the last ones; accumulation as it does it."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from tally import Tally, think
from torch.utils.data import DataLoader, TensorDataset


def main(dispatch):
    configuration = DataLoaderConfiguration(dispatch_batches=dispatch)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, dataloader_config=configuration)
    length = 16 * 5 * accelerator.num_processes + 7
    data = TensorDataset(torch.arange(length), torch.randn(length, 4))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=5))
    tally = Tally()
    for _ in range(2):
        tally.start()
        highest = -1
        for index, x in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(x).square().mean())
                think(0.006)
                fresh = index[index > highest] if not dispatch else index  # what is filled up comes from the beginning
                highest = max(highest, int(index.max()))
                tally.seen(len(fresh))
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                tally.step()
        tally.leave_epoch()
    tally.write()
    accelerator.end_training()


if __name__ == "__main__":
    main(dispatch=sys.argv[1] == "dispatch")
