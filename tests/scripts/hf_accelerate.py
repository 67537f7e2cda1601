"""Hugging Face accelerate: its loaders draw one batch ahead and pad the last ones; with its own accumulation."""

import sys

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from tally import Tally, think
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

COLLATE = {
    "prompts": lambda samples: [{"prompt": f"{index} + 1"} for index, _ in samples],  # as TRL's GRPO has them
    "one_row": lambda samples: (torch.stack([i for i, _ in samples])[None], torch.stack([x for _, x in samples])[None]),
}
TAKEN = 8  # batches before an epoch is broken off and taken up again


class Stream(IterableDataset):
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        yield from self.data


def opened(batch):
    if isinstance(batch[0], dict):
        index = torch.tensor([int(sample["prompt"].split()[0]) for sample in batch])
        return index, torch.randn(len(index), 4)
    return [part.squeeze(0) for part in batch]


def main(kind):
    configuration = DataLoaderConfiguration(
        dispatch_batches=kind == "dispatch",
        split_batches=kind == "split",
        use_stateful_dataloader=kind == "stateful",
    )
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, dataloader_config=configuration)
    length = 16 * 5 * accelerator.num_processes + 7
    data = TensorDataset(torch.arange(length), torch.randn(length, 4))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    size = 5 * accelerator.num_processes if kind == "split" else 5
    loader = DataLoader(Stream(data) if kind == "skip_stream" else data, batch_size=size, collate_fn=COLLATE.get(kind))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    tally = Tally()

    def epoch(loader, batches=None, highest=-1):
        tally.start()
        for number, (index, x) in enumerate(map(opened, loader)):
            with accelerator.accumulate(model):
                accelerator.backward(model(x).square().mean())
                think(0.006)
                fresh = index[index > highest]  # what is filled up comes from the beginning
                highest = max(highest, int(index.max()))
                # How long a stream is nobody knows: what is filled up counts.
                tally.seen(len(index if kind == "skip_stream" else fresh))
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                tally.step()
            if number + 1 == batches:
                break
        tally.leave_epoch()
        return highest

    epoch(loader)
    if kind == "stateful":
        highest = epoch(loader, TAKEN)
        loader.load_state_dict(loader.state_dict())
        epoch(loader, highest=highest)
    elif kind.startswith("skip"):
        epoch(skip_first_batches(loader, TAKEN))
    epoch(loader)
    tally.write()
    accelerator.end_training()


if __name__ == "__main__":
    main(sys.argv[1])
