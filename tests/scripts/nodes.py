"""torchdata.nodes: a loader that is no torch DataLoader; with ``write`` the script reports its steps itself."""

import json
import os
import sys

import torch
from ranks import together
from tally import Tally, think
from torchdata.nodes import Batcher, IterableWrapper, Loader, Mapper


def main(write):
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(7)
    samples = torch.randn(8 * 40 * world, 4)
    mine = IterableWrapper(range(rank, len(samples), world))
    loader = Loader(Mapper(Batcher(mine, batch_size=8), lambda indices: samples[indices]))
    model = together(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tally = Tally()
    tally.start()
    for x in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        think()
        tally.seen(len(x))
        optimizer.step()
        tally.step()
        if write:
            with open(os.environ["DDP_LADDER_METRICS"], "a") as file:
                print(json.dumps({"samples": len(x), "seconds": tally.seconds[-1]}), file=file)
    tally.write()


if __name__ == "__main__":
    main(write="write" in sys.argv)
