"""Go on in plain torch: the last parameters are bit for bit those of a training that nothing has cut.

    torchrun --nproc-per-node=2 plain_torch.py DIRECTORY EPOCHS

For that with dropout or augmentation, save torch.get_rng_state() of each rank as well, or call torch.manual_seed with a
number made of rank and epoch at each epoch. The batches that are skipped are read; where that takes long, use
StatefulDataLoader of torchdata and save its state.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

file, epochs = f"{sys.argv[1]}/state.pt", int(sys.argv[2])
warned = []
signal.signal(signal.SIGUSR1, lambda *_: warned.append(True))

dist.init_process_group()
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
torch.manual_seed(0)
data = TensorDataset(torch.randn(1024, 16), torch.randn(1024, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
model = DistributedDataParallel(torch.nn.Linear(16, 1).to(device))
optimizer = torch.optim.Adam(model.parameters())
parts = {"model": model, "optimizer": optimizer}  # and the scheduler, the GradScaler
done = 0  # steps, in all links


def save():
    if dist.get_rank() == 0:
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**state, "done": done}, f"{file}.new")
        os.replace(f"{file}.new", file)  # a reader finds the old state or the new one
    dist.barrier()


def is_any_rank_warned():  # ranks get the signal at different steps, and have to end at the same one
    flag = torch.tensor(len(warned), device=device)
    dist.all_reduce(flag)
    return flag.item() > 0


if os.path.exists(file):
    state = torch.load(file, map_location=device)  # on every rank
    for name, part in parts.items():
        part.load_state_dict(state[name])
    done = state["done"]

for epoch in range(done // len(loader), epochs):
    sampler.set_epoch(epoch)  # the same order of samples as before
    for number, (inputs, targets) in enumerate(loader, epoch * len(loader)):
        if number < done:  # this batch was trained on before the state was saved
            continue
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()
        done += 1
        if done % 10 == 0 and is_any_rank_warned():
            save()
            sys.exit(75)
    save()
    if dist.get_rank() == 0:
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
