"""Training loops as people write them, each with its own count of samples a step: what the witness must tell.

A loop gets a list, to which it appends the samples of each step of its training. ``doubted`` ones cannot be followed
exactly; what is told of them comes with that doubt.
"""

import copy
import itertools
import queue
import threading

import torch
import torch.nn.functional as F
from ddp_ladder_instrument.testimony import CLOSURE, MIXED, NO_BATCH, NO_TENSORS, ROWS, UNSEEN
from torch import distributed, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

LOOPS, OF_TWO_RANKS, DOUBTS = {}, {}, {}


def loop(function):
    LOOPS[function.__name__] = function
    return function


def of_two_ranks(function):
    OF_TWO_RANKS[function.__name__] = function
    return function


def doubted(doubt):
    def add(function):
        DOUBTS[function.__name__] = doubt
        return loop(function)

    return add


def data(n=24, k=4, d=6, **kw):
    return DataLoader(TensorDataset(torch.randn(n, d), torch.randint(0, 3, (n,))), batch_size=k, **kw)


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def sgd(m, **k):
    return torch.optim.SGD(m.parameters(), lr=0.1, **k)


def net_and_sgd():
    m = net()
    return m, sgd(m)


def learn(m, o, x, y, tally):
    o.zero_grad()
    cross_entropy(m(x), y).backward()
    o.step()
    tally.append(len(x))


@loop
def plain(tally):
    m, o = net_and_sgd()
    for x, y in data():
        cross_entropy(m(x), y).backward()
        o.step()
        o.zero_grad()
        tally.append(len(x))


@loop
def thrown_none(tally):
    m = net()
    o = torch.optim.Adam(m.parameters())
    for i, (x, y) in enumerate(data()):
        cross_entropy(m(x), y).backward()
        if i % 2:
            for p in m.parameters():
                p.grad = None
            continue
        o.step()
        o.zero_grad()
        tally.append(len(x))


@loop
def accumulate(tally):
    m = net()
    o = sgd(m, momentum=0.9)
    n = 0
    for i, (x, y) in enumerate(data(28)):
        (cross_entropy(m(x), y) / 4).backward()
        n += len(x)
        if i % 4 == 3:
            o.step()
            o.zero_grad(set_to_none=False)
            tally.append(n)
            n = 0


@loop
def body_is_frozen_after_two_steps(tally):
    body, head = net(), nn.Linear(3, 3)
    first, second = sgd(body, momentum=0.9), sgd(head, momentum=0.9)
    for x, y in data():
        cross_entropy(head(body(x)), y).backward()
        if len(tally) < 2:
            first.step()
        nn.utils.clip_grad_norm_(head.parameters(), 0.1)
        second.step()
        first.zero_grad()
        second.zero_grad()
        tally.append(len(x))


@loop
def second_phase(tally):
    m, o = net_and_sgd()
    for i, (x, y) in enumerate(data()):
        if i % 2:
            torch.autograd.grad(cross_entropy(m(x), y), list(m.parameters()))
            continue
        learn(m, o, x, y, tally)


@loop
def autograd_grad(tally):
    m, o = net_and_sgd()
    for x, y in data():
        for p, g in zip(m.parameters(), torch.autograd.grad(cross_entropy(m(x), y), list(m.parameters()))):
            p.grad = g
        o.step()
        tally.append(len(x))


@loop
def validation_with_backward(tally):
    m, o = net_and_sgd()
    v = data(8)
    for x, y in data():
        learn(m, o, x, y, tally)
        for a, b in v:
            a.requires_grad_()
            cross_entropy(m(a), b).backward()
        o.zero_grad()


@loop
def anew_break(tally):
    m, o = net_and_sgd()
    ds = TensorDataset(torch.randn(24, 6), torch.randint(0, 3, (24,)))
    for _ in range(4):
        for x, y in DataLoader(ds, batch_size=4):
            learn(m, o, x, y, tally)
            break


@loop
def zipped(tally):
    m, o = net_and_sgd()
    for (x, y), (u, _) in zip(data(), data(24, 8)):
        o.zero_grad()
        (cross_entropy(m(x), y) + m(u).square().mean()).backward()
        o.step()
        tally.append(len(x) + len(u))


@loop
def stacked(tally):
    m, o = net_and_sgd()
    it = iter(data())
    for _ in range(2):
        bs = [next(it) for _ in range(3)]
        o.zero_grad()
        cross_entropy(m(torch.stack([b[0] for b in bs])).flatten(0, 1), torch.cat([b[1] for b in bs])).backward()
        o.step()
        tally.append(12)


@loop
def fgsm(tally):
    m, o = net_and_sgd()
    for x, y in data():
        x.requires_grad_()
        cross_entropy(m(x), y).backward()
        a = (x + 0.1 * x.grad.sign()).detach()
        learn(m, o, a, y, tally)


@loop
def interleaved_validation(tally):
    m, o = net_and_sgd()
    v = iter(data())
    for i, (x, y) in enumerate(data()):
        learn(m, o, x, y, tally)
        a, b = next(v)
        cross_entropy(m(a), b).item()


@doubted(CLOSURE)
def lbfgs_over_the_loader(tally):
    m = net()
    o = torch.optim.LBFGS(m.parameters(), max_iter=4)
    for _ in range(5):

        def c():
            o.zero_grad()
            losses = []
            for x, y in batches:
                losses.append(cross_entropy(m(x), y))
                losses[-1].backward()
            return sum(l.detach() for l in losses)

        batches = data()
        o.step(c)
        tally.append(24)


@loop
def lbfgs(tally):
    m = net()
    o = torch.optim.LBFGS(m.parameters(), max_iter=4)
    for x, y in data():

        def c():
            o.zero_grad()
            l = cross_entropy(m(x), y)
            l.backward()
            return l

        o.step(c)
        tally.append(len(x))


@loop
def maml(tally):
    m = net()
    o = torch.optim.Adam(m.parameters())
    for x, y in data():
        ps = dict(m.named_parameters())
        f = lambda p, a: torch.func.functional_call(m, p, (a,))
        g = torch.autograd.grad(cross_entropy(f(ps, x[:2]), y[:2]), list(ps.values()), create_graph=True)
        fast = {k: p - 0.1 * q for (k, p), q in zip(ps.items(), g)}
        o.zero_grad()
        cross_entropy(f(fast, x[2:]), y[2:]).backward()
        o.step()
        tally.append(len(x))


@loop
def checkpoint(tally):
    from torch.utils.checkpoint import checkpoint as C

    m = net()
    h = nn.Linear(3, 3)
    o = torch.optim.SGD([*m.parameters(), *h.parameters()], lr=0.1)
    for re in (True, False):
        for x, y in data():
            x.requires_grad_()
            learn(lambda x: h(C(m, x, use_reentrant=re)), o, x, y, tally)


@loop
def in_backward(tally):
    m = net()
    os_ = {p: torch.optim.SGD([p], lr=0.1) for p in m.parameters()}
    for p in m.parameters():
        p.register_post_accumulate_grad_hook(lambda p: (os_[p].step(), os_[p].zero_grad(), None)[2])
    for x, y in data():
        cross_entropy(m(x), y).backward()
        tally.append(len(x))


@doubted(NO_BATCH)
def no_loader(tally):
    m, o = net_and_sgd()
    for _ in range(4):
        o.zero_grad()
        m(torch.randn(4, 6)).sum().backward()
        o.step()
        tally.append(4)


@doubted(MIXED)
def replay(tally):
    m, o = net_and_sgd()
    buf = []
    for x, y in data():
        buf.append((x, y))
        i = [k % len(buf) for k in range(3)]
        learn(m, o, torch.cat([buf[k][0] for k in i]), torch.cat([buf[k][1] for k in i]), tally)


@loop
def mined_before(tally):
    m, o = net_and_sgd()
    for x, y in data(64, 16):
        with torch.no_grad():
            k = cross_entropy(m(x), y, reduction="none").topk(4).indices
        learn(m, o, x[k], y[k], tally)


@doubted(ROWS)
def mined_after(tally):
    m, o = net_and_sgd()
    for x, y in data(64, 16):
        o.zero_grad()
        cross_entropy(m(x), y, reduction="none").topk(4).values.mean().backward()
        o.step()
        tally.append(4)


@loop
def masked(tally):
    m, o = net_and_sgd()
    for x, y in data(64, 16):
        learn(m, o, x[y > 0], y[y > 0], tally)


@loop
def cached_teacher(tally):
    t = net()
    m, o = net_and_sgd()
    c = data()
    with torch.no_grad():
        cache = [t(x) for x, _ in c]
    for _ in range(2):
        for (x, y), l in zip(c, cache):
            o.zero_grad()
            F.mse_loss(m(x), l).backward()
            o.step()
            tally.append(len(x))


@loop
def cycled(tally):
    m = net()
    o = torch.optim.Adam(m.parameters())
    it = itertools.cycle(data(12))
    for _ in range(9):
        x, y = next(it)
        learn(m, o, x, y, tally)


@loop
def probe_after_epoch(tally):
    m, o = net_and_sgd()
    v = data(8)
    for _ in range(2):
        for x, y in data():
            learn(m, o, x, y, tally)
        p = nn.Linear(3, 3)
        q = sgd(p)
        for x, y in v:
            with torch.no_grad():
                h = m(x)
            learn(p, q, h, y, [])


@loop
def copy_finetuned(tally):
    m, o = net_and_sgd()
    v = data(8)
    for _ in range(2):
        for x, y in data():
            learn(m, o, x, y, tally)
        c = copy.deepcopy(m)
        q = sgd(c)
        for x, y in v:
            learn(c, q, x, y, [])


@doubted(NO_TENSORS)
def lists(tally):
    m, o = net_and_sgd()
    ds = [([float(i)] * 6, i % 3) for i in range(24)]
    for b in DataLoader(ds, batch_size=4, collate_fn=lambda b: b):
        x = torch.tensor([r[0] for r in b])
        y = torch.tensor([r[1] for r in b])
        learn(m, o, x, y, tally)


@loop
def step_refused(tally):
    m = net()
    o = torch.optim.SparseAdam(m.parameters())
    for x, y in data():
        m.zero_grad()
        cross_entropy(m(x), y).backward()
        try:
            o.step()
        except RuntimeError:  # does not support dense gradients
            with torch.no_grad():
                for p in m.parameters():
                    p -= 0.1 * p.grad
        tally.append(len(x))


@doubted(UNSEEN)
def numpy_kernel(tally):
    m, o = net_and_sgd()

    class Raw(torch.optim.SGD):
        @torch.no_grad()
        def step(s):
            for g in s.param_groups:
                for p in g["params"]:
                    p.detach().numpy()[...] -= 0.1 * p.grad.numpy()

    o = Raw(m.parameters(), lr=0.1)
    for x, y in data():
        learn(m, o, x, y, tally)


@loop
def ppo_minibatches(tally):
    m, o = net_and_sgd()
    for x, y in data(64, 16):
        for i in range(4):
            o.zero_grad()
            cross_entropy(m(x[4 * i : 4 * i + 4]), y[4 * i : 4 * i + 4]).backward()
            o.step()
        tally.append(16)


@loop
def ema_sampling(tally):
    m = net()
    e = copy.deepcopy(m)
    o = torch.optim.Adam(m.parameters())
    for x, y in data():
        learn(m, o, x, y, tally)
        with torch.no_grad():
            for a, b in zip(e.parameters(), m.parameters()):
                a.lerp_(b, 0.1)
            e(x)


@loop
def manual_sgd(tally):
    m = net()
    for x, y in data():
        m.zero_grad()
        cross_entropy(m(x), y).backward()
        tally.append(len(x))
        with torch.no_grad():
            for p in m.parameters():
                p -= 0.1 * p.grad


@loop
def tensors_as_parameters(tally):
    w = torch.zeros(6, 3, requires_grad=True)
    o = torch.optim.SGD([w], lr=0.1)
    for x, y in data():
        learn(lambda x: x @ w, o, x, y, tally)


@loop
def clip_global_ema(tally):
    m = net()
    o = torch.optim.Adam(m.parameters())
    ema = torch.tensor(1.0)
    for x, y in data():
        o.zero_grad()
        cross_entropy(m(x), y).backward()
        n = nn.utils.clip_grad_norm_(m.parameters(), ema)
        ema = 0.9 * ema + 0.1 * n
        o.step()
        tally.append(len(x))


@loop
def gan(tally):
    d, g = (net(), nn.Linear(6, 6))
    od, og = (sgd(d), sgd(g))
    for x, _ in data():
        od.zero_grad()
        (d(x) - d(g(torch.randn(4, 6)).detach())).mean().backward()
        od.step()
        tally.append(len(x))
        og.zero_grad()
        d(g(torch.randn(4, 6))).mean().backward()
        og.step()


@loop
def tbptt(tally):
    r = nn.LSTM(6, 8, batch_first=True)
    h = nn.Linear(8, 3)
    o = torch.optim.Adam([*r.parameters(), *h.parameters()])
    s = None
    for x, y in data():
        out, s = r(x[:, None], s)
        s = tuple(v.detach() for v in s)
        learn(h, o, out[:, -1], y, tally)


@loop
def sparse(tally):
    e = nn.EmbeddingBag(10, 4, sparse=True, mode="mean")
    o = torch.optim.SparseAdam(e.parameters())
    for x in DataLoader(torch.randint(0, 10, (24, 3)), batch_size=4):
        o.zero_grad()
        e(x).sum().backward()
        o.step()
        tally.append(len(x))


@loop
def sam(tally):
    m, o = net_and_sgd()
    for x, y in data():
        cross_entropy(m(x), y).backward()
        e = [0.05 * p.grad / (p.grad.norm() + 1e-06) for p in m.parameters()]
        with torch.no_grad():
            [p.add_(d) for p, d in zip(m.parameters(), e)]
        o.zero_grad()
        cross_entropy(m(x), y).backward()
        with torch.no_grad():
            [p.sub_(d) for p, d in zip(m.parameters(), e)]
        o.step()
        o.zero_grad()
        tally.append(len(x))


@loop
def darts(tally):
    m = net()
    a = nn.Parameter(torch.zeros(3))
    o = sgd(m)
    q = torch.optim.Adam([a])
    v = data()
    for (x, y), (u, w) in zip(data(), v):
        q.zero_grad()
        cross_entropy(m(u) * a.sigmoid(), w).backward()
        q.step()
        learn(lambda x: m(x) * a.sigmoid(), o, x, y, tally)


@loop
def penalty(tally):
    m, o = net_and_sgd()
    for x, y in data():
        x.requires_grad_()
        (g,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
        o.zero_grad()
        (cross_entropy(m(x), y) + (g.norm() - 1) ** 2).backward()
        o.step()
        tally.append(len(x))


@loop
def nan_guard(tally):
    m = net()
    o = torch.optim.Adam(m.parameters())
    for i, (x, y) in enumerate(data()):
        o.zero_grad()
        (cross_entropy(m(x), y) * (float("nan") if i == 2 else 1)).backward()
        if not all(p.grad.isfinite().all() for p in m.parameters()):
            continue
        o.step()
        tally.append(len(x))


@loop
def leftover(tally):
    m, o = net_and_sgd()
    n = 0
    for _ in range(2):
        for i, (x, y) in enumerate(data(20)):
            cross_entropy(m(x), y).backward()
            n += len(x)
            if i % 2:
                o.step()
                o.zero_grad()
                tally.append(n)
                n = 0


@loop
def stream(tally):

    class S(IterableDataset):
        def __iter__(s):
            return ((torch.randn(6), i % 3) for i in range(20))

    m, o = net_and_sgd()
    for x, y in DataLoader(S(), batch_size=4):
        learn(m, o, x, y, tally)


@loop
def objects(tally):

    class B:
        def __init__(s, b):
            s.x = torch.stack([r[0] for r in b])
            s.y = torch.tensor([r[1] for r in b])

    m, o = net_and_sgd()
    for b in DataLoader([(torch.randn(6), i % 3) for i in range(24)], batch_size=4, collate_fn=B):
        learn(m, o, b.x, b.y, tally)


@loop
def prefetcher(tally):
    m, o = net_and_sgd()
    it = iter(data())
    nxt = next(it)
    while nxt is not None:
        x, y = nxt
        nxt = next(it, None)
        learn(m, o, x, y, tally)


@doubted(NO_BATCH)
def threaded(tally):
    m, o = net_and_sgd()
    q = queue.Queue(2)

    def feed():
        for b in data():
            q.put(b)
        q.put(None)

    threading.Thread(target=feed).start()
    while (b := q.get()) is not None:
        learn(m, o, *b, tally)


@loop
def scaler(tally, fused=None):
    m = net()
    o = torch.optim.AdamW(m.parameters(), fused=fused)
    s = torch.amp.GradScaler("cpu", init_scale=4.0)
    for i, (x, y) in enumerate(data()):
        o.zero_grad()
        s.scale(cross_entropy(m(x), y) * (float("inf") if i % 3 == 1 else 1)).backward()
        s.step(o)
        s.update()
        if i % 3 != 1:
            tally.append(len(x))


@loop
def scaler_fused(tally):
    scaler(tally, fused=True)


@doubted(MIXED)
def mixup_previous(tally):
    m, o = net_and_sgd()
    p = None
    for x, y in data():
        u = x if p is None else 0.5 * x + 0.5 * p
        p = x
        learn(m, o, u, y, tally)


@loop
def loss_weighting(tally):
    m, o = net_and_sgd()
    r = torch.ones(())
    for x, y in data():
        l = cross_entropy(m(x), y)
        o.zero_grad()
        (l / r).backward()
        r = 0.9 * r + 0.1 * l.detach()
        o.step()
        tally.append(len(x))


@loop
def tensor_lr_from_loss(tally):
    m = net()
    o = torch.optim.SGD(m.parameters(), lr=torch.tensor(0.1))
    v = iter(data())
    for x, y in data():
        learn(m, o, x, y, tally)
        with torch.no_grad():
            a, b = next(v)
            o.param_groups[0]["lr"] = 0.1 * cross_entropy(m(a), b).clamp(max=1)


@loop
def memory_bank(tally):
    m, o = net_and_sgd()
    bank = torch.zeros(8, 3)
    for i, (x, y) in enumerate(data()):
        z = m(x)
        o.zero_grad()
        (z @ bank.t()).logsumexp(1).mean().backward()
        o.step()
        tally.append(len(x))
        k = 4 * (i % 2)
        bank[k : k + 4] = z.detach()


@loop
def preallocated_rows(tally):
    m, o = net_and_sgd()
    b = torch.zeros(4, 6)
    for x, y in data():
        for i in range(4):
            b[i] = x[i]
        learn(m, o, b, y, tally)


@loop
def half_of_batch(tally):
    m, o = net_and_sgd()
    for x, y in data():
        learn(m, o, x[:2], y[:2], tally)


@loop
def stale_gradients(tally):
    m, o = net_and_sgd()
    held = None
    for x, y in data():
        g = torch.autograd.grad(cross_entropy(m(x), y), list(m.parameters()))
        if held is not None:
            for p, q in zip(m.parameters(), held[0]):
                p.grad = q
            o.step()
            tally.append(held[1])
        held = (g, len(x))


@loop
def vmap_grads(tally):
    m, o = net_and_sgd()
    ps = dict(m.named_parameters())
    f = lambda p, a, b: cross_entropy(torch.func.functional_call(m, p, (a[None],)), b[None])
    for x, y in data():
        g = torch.func.vmap(torch.func.grad(f), in_dims=(None, 0, 0))({k: p.detach() for k, p in ps.items()}, x, y)
        for k, p in ps.items():
            p.grad = g[k].mean(0)
        o.step()
        tally.append(len(x))


def of_rank(n=48, k=4):
    dataset = TensorDataset(torch.randn(n, 6), torch.randint(0, 3, (n,)))
    return DataLoader(dataset, batch_size=k, sampler=DistributedSampler(dataset))


def ddp_learns(m, o, tally):
    for x, y in of_rank():
        learn(m, o, x, y, tally)


@of_two_ranks
def ddp(tally):
    m = DistributedDataParallel(net())
    ddp_learns(m, torch.optim.AdamW(m.parameters()), tally)


@of_two_ranks
def ddp_bucket_views(tally):
    m = DistributedDataParallel(net(), gradient_as_bucket_view=True)
    ddp_learns(m, sgd(m, momentum=0.9), tally)


@of_two_ranks
def ddp_no_sync(tally):
    m = DistributedDataParallel(net())
    o, n = sgd(m), 0
    for i, (x, y) in enumerate(of_rank(64)):
        n += len(x)
        if i % 4 < 3:
            with m.no_sync():
                cross_entropy(m(x), y).backward()
            continue
        cross_entropy(m(x), y).backward()
        o.step()
        o.zero_grad()
        tally.append(n)
        n = 0


@of_two_ranks
def ddp_validates_on_one_rank(tally):
    m = DistributedDataParallel(net())
    o, v = sgd(m), data(8)
    for i, (x, y) in enumerate(of_rank()):
        learn(m, o, x, y, tally)
        if i % 3 == 0 and distributed.get_rank() == 0:
            for a, b in v:
                cross_entropy(m.module(a), b).item()
        distributed.barrier()


@of_two_ranks
def zero_redundancy(tally):
    m = DistributedDataParallel(net())
    ddp_learns(m, ZeroRedundancyOptimizer(m.parameters(), torch.optim.Adam, lr=0.1), tally)


@of_two_ranks
def averaged_by_hand(tally):
    m = net()
    o = torch.optim.Adam(m.parameters())
    for x, y in of_rank():
        o.zero_grad()
        cross_entropy(m(x), y).backward()
        for p in m.parameters():
            distributed.all_reduce(p.grad)
            p.grad /= 2
        o.step()
        tally.append(len(x))


@of_two_ranks
def sharded(tally):
    m = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    ddp_learns(m, torch.optim.AdamW(m.parameters()), tally)


@of_two_ranks
def sharded_as_dtensors(tally):
    m = net()
    mesh = distributed.init_device_mesh("cpu", (2,))
    for part in (m[0], m[2], m):
        fully_shard(part, mesh=mesh)
    ddp_learns(m, torch.optim.AdamW(m.parameters()), tally)
