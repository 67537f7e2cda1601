"""Hugging Face accelerate: its loaders draw one batch ahead and pad the last ones; with its own accumulation."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from tally import Tally, think
from torch.utils.data import DataLoader, TensorDataset

COLLATE = {
    "prompts": lambda samples: [{"prompt": f"{index} + 1"} for index, _ in samples],  # as TRL's GRPO has them
    "one_row": lambda samples: (torch.stack([i for i, _ in samples])[None], torch.stack([x for _, x in samples])[None]),
}


def opened(batch):
    if isinstance(batch[0], dict):
        index = torch.tensor([int(sample["prompt"].split()[0]) for sample in batch])
        return index, torch.randn(len(index), 4)
    return [part.squeeze(0) for part in batch]


def main(kind):
    configuration = DataLoaderConfiguration(split_batches=kind == "split")
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, dataloader_config=configuration)
    length = 16 * 5 * accelerator.num_processes + 7
    data = TensorDataset(torch.arange(length), torch.randn(length, 4))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    size = 5 * accelerator.num_processes if kind == "split" else 5
    loader = DataLoader(data, batch_size=size, collate_fn=COLLATE.get(kind))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    tally = Tally()
    for _ in range(2):
        highest = -1
        tally.start()
        for index, x in map(opened, loader):
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
