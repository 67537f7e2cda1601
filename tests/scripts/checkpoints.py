"""Save a model on every rank, in one way: torch.save on rank 0, or with torch.distributed.checkpoint."""

import io
import sys
import threading

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

THREADS = 2  # of a writer: each calls torch.save


def save_samples():
    """As into the shards of a data set."""
    for sample in torch.rand(4, 300):
        torch.save({"x": sample, "y": [sample, 1]}, io.BytesIO())


def save(how, model, epoch):
    state = {"model": model.module.state_dict()}
    if how == "checkpoint":
        writer = dcp.FileSystemWriter(f"checkpoint-{epoch}", single_file_per_rank=False, thread_count=THREADS)
        dcp.save(state, storage_writer=writer)
    elif how == "async":
        dcp.async_save(state, checkpoint_id=f"checkpoint-{epoch}").result()
    elif how == "thread":
        thread = threading.Thread(target=torch.save, args=(state, f"snapshot-{dist.get_rank()}-{epoch}.pt"))
        thread.start()
        thread.join()
    elif how == "buffer":
        buffer = io.BytesIO(bytes(100))
        buffer.seek(100)
        torch.save(state, buffer)
        print("bytes", buffer.tell() - 100)
        save_samples()
    elif dist.get_rank() == 0:
        torch.save(state, f=f"snapshot-{epoch}.pt")


def main(how):
    dist.init_process_group("gloo")
    save_samples()
    torch.save(torch.rand(300, 40), f"data-{dist.get_rank()}.pt")  # of any shape, before the training
    data = TensorDataset(torch.rand(16, 300), torch.rand(16, 40))
    model = DistributedDataParallel(torch.nn.Linear(300, 40))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(3):
        for source, target in DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            F.mse_loss(model(source), target).backward()
            optimizer.step()
        save(how, model, epoch)
    # The group is kept: torch 2.4 hangs now and then if it is destroyed while a thread of Gloo frees a tensor.


if __name__ == "__main__":
    main(sys.argv[1])
