"""Trains the demonstration model: language and conversations, quantisation-aware ending, DSpark blocks, export, samples.

    python train.py --tokenizer TOK.json --out DIR --seconds 420 --draft-seconds 60

Steps are planned once: after the first steps the time of a step is measured and the plan is what fits into --seconds (or give
--steps). Data come from worker processes (reference/data/mix.py). Figures go to DIR/log.jsonl, one JSON object a line."""

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time

T0 = time.time()

import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "data")]

import config
import export
import mix
import params
import speculate
from model import Model, cross_entropy, plain_calls
from optim import Optimizer

ROWS, SEQ = 64, 1024
torch._dynamo.config.recompile_limit = 64


class Log:
    def __init__(self, path):
        self.f = open(path, "a", buffering=1)

    def __call__(self, **kw):
        kw["time"] = round(time.time() - T0, 2)
        line = json.dumps({k: (round(v, 5) if isinstance(v, float) else v) for k, v in kw.items()})
        self.f.write(line + "\n")
        print(line, flush=True)


class Step:
    """A function of device tensors that is called many times with the same shapes: recorded as a CUDA graph at its first call, after
    plain calls have compiled everything. On the CPU, or if recording fails, it stays a plain call."""

    pool = None

    def __init__(self, fn, log):
        self.fn, self.log, self.graph = fn, log, None
        self.plain = not torch.cuda.is_available()

    def __call__(self, *inputs):
        if self.plain:
            return self.fn(*inputs)
        if self.graph is None:
            self.inputs = [x.clone() for x in inputs]
            torch.cuda.synchronize()
            try:
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    out = tuple(x.clone() for x in self.fn(*self.inputs))
                torch.cuda.current_stream().wait_stream(side)
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=Step.pool):
                    self.out = self.fn(*self.inputs)
                Step.pool, self.graph = graph.pool(), graph
                self.log(event="recorded", peak_gib=torch.cuda.max_memory_allocated() / 2 ** 30)
            except RuntimeError as e:
                self.log(event="not recorded", why=str(e)[:300])
                self.plain = True
                torch.cuda.synchronize()
            return out
        for a, b in zip(self.inputs, inputs):
            a.copy_(b, non_blocking=True)
        self.graph.replay()
        return tuple(x.clone() for x in self.out)


class Loader:
    """Chunks in order, one ahead on the device."""

    def __init__(self, folder, first, device):
        self.folder, self.g, self.device = folder, first, device
        self.next = None
        self.waited = 0.0
        self._start()

    def _read(self):
        path = os.path.join(self.folder, f"c{self.g:07d}.npy")
        t = time.time()
        while not os.path.exists(path):
            time.sleep(0.005)
            if time.time() - t > 120:
                raise RuntimeError(f"no chunk {path}")
        self.waited += time.time() - t
        c = np.load(path)
        os.remove(path)
        self.g += 1
        self.next = to_device(c, self.device)

    def _start(self):
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def settle(self):
        """Nothing of the loader touches the device until the next get()."""
        self.thread.join()

    def get(self):
        self.thread.join()
        out = self.next
        self._start()
        return out


def to_device(c, device):
    """chunk -> tokens, targets (-1: no loss), start [rows, seq]"""
    tok, loss = (c[0] & 0x7FFF).astype(np.int64), c[0] >> 15
    target = np.full_like(tok, -1)
    same = c[1][:, 1:] == c[1][:, :-1]
    target[:, :-1] = np.where((loss[:, 1:] == 1) & same, tok[:, 1:], -1)
    return tuple(torch.from_numpy(x).to(device, non_blocking=True) for x in (tok, target, c[1].astype(np.int64)))


def schedule(step, steps, peak, warm, decay_from):
    """Warm-up, plateau, then straight down to 3 %."""
    if step < warm:
        return peak * (step + 1) / warm
    at = step / steps
    if at < decay_from:
        return peak
    return peak * max(0.03, 1 - 0.97 * (at - decay_from) / (1 - decay_from))


class Trainer:
    def __init__(self, o, log):
        self.o, self.log = o, log
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        _, self.cfg, tables = config.build(o.tokenizer)
        self.model = Model(self.cfg, tables, o.seq, self.device)
        self.kinds = {n: k for n, (_, k, _) in params.spec(self.cfg).items()}
        if o.resume:
            self.masters, self.biases = export.load(o.resume, self.device)
            if o.fresh_drafts:
                self.masters.update({n: t for n, t in params.init(self.cfg, o.seed, self.device, "mtp.").items()})
        else:
            self.masters, self.biases = params.init(self.cfg, o.seed, self.device), params.init_biases(self.cfg, self.device)
        self.backbone = {n: t for n, t in self.masters.items() if not n.startswith("mtp.")}
        self.drafts = {n: t for n, t in self.masters.items() if n.startswith("mtp.")}
        self.layers = self.cfg["num_hidden_layers"]
        log(event="start", device=torch.cuda.get_device_name() if self.device == "cuda" else "cpu", torch=torch.__version__,
            parameters=sum(t.numel() for t in self.backbone.values()), draft_parameters=sum(t.numel() for t in self.drafts.values()))

    def optimizer(self, weights):
        return Optimizer(weights, {n for n in weights if params.uses_muon(n, self.kinds[n])})

    def balance(self, loads, which, rate=0.001):
        for i, c in zip(which, loads):
            c = c.float()
            self.biases[i] += rate * torch.sign(c.mean() - c)

    def step(self, opt, tok, target, start, lr, qat):
        """One optimizer step; lr is a tensor. Returns loss, index loss, gradient norm, expert loads [layers, experts]."""
        w = params.cast(self.backbone, self.kinds, self.dtype, qat)
        loads = []
        h, iloss = self.model.forward(w, tok, start, self.biases, index_rows=max(1, tok.shape[0] // 16), loads=loads)
        count = (target >= 0).sum().clamp(min=1)
        loss = cross_entropy(h, w["head.weight"], target.flatten()) / count
        (loss + self.o.index_weight * iloss).backward()
        with torch.no_grad():
            norm = opt.step({n: w[n].grad if w[n].grad is not None else torch.zeros_like(w[n]) for n in self.backbone}, lr)
            self.balance(loads, range(self.layers))
            return loss.detach(), iloss.detach(), norm, torch.stack(loads)

    def heldout(self, chunks, qat):
        """Loss per chunk. Gradients stay on, unused: the compiled forms of training are reused."""
        out = {}
        w = params.cast(self.backbone, self.kinds, self.dtype, qat)
        for name, (tok, target, start) in chunks.items():
            h, _ = self.model.forward(w, tok, start, self.biases)
            out[name] = (cross_entropy(h, w["head.weight"], target.flatten()) / (target >= 0).sum()).item()
            del h
        return out

    def pretrain(self, loader, held):
        o = self.o
        opt = self.optimizer(self.backbone)
        Step.pool = None
        steps, step, tokens, marked = o.steps or 10 ** 9, 0, 0, None
        begun = time.time()
        fast = {q: Step(lambda *x, q=q: self.step(opt, *x, q), self.log) for q in (False, True)}
        pending = []
        while step < steps:
            qat = step >= steps * o.qat_from
            lr = schedule(step, steps, o.lr, o.warm, o.decay_from)
            batch = loader.get()
            args = (*batch, torch.tensor(lr, device=self.device))
            if step < 3:        # compiles
                loss, iloss, norm, loads = self.step(opt, *args, qat)
            else:
                if fast[qat].graph is None:
                    loader.settle()
                loss, iloss, norm, loads = fast[qat](*args)
            tokens += batch[0].numel()
            step += 1
            if step in (20, 60) and not o.steps:
                self.sync()
                if step == 60:
                    per = (time.time() - marked) / 40
                    steps = step + int((o.seconds - (time.time() - begun)) / (per * 1.04))
                    self.log(event="plan", steps=steps, ms_per_step=per * 1000, tokens_per_s=batch[0].numel() / per)
                marked = time.time()
            pending.append(loss)
            if step % 50 == 0 or step == steps or step in (1, 3, 4, 5, 10):
                mean = torch.stack(pending).mean().item()
                self.log(step=step, tokens=tokens, loss=mean, index_loss=iloss.item(), grad_norm=norm.item(), lr=lr,
                         load_max=(loads.amax(1) / loads.float().mean(1)).max().item(), waited=loader.waited, qat=qat)
                pending = []
                if not np.isfinite(mean):
                    raise RuntimeError("loss is not finite")
            if step % 500 == 0 or step == steps:
                self.log(step=step, heldout=self.heldout(held, qat))
            if not o.steps and time.time() - begun > o.seconds + 20:
                self.log(event="out of time", step=step)
                break
        self.log(event="backbone done", seconds=time.time() - begun, tokens=tokens, heldout=self.heldout(held, True), heldout_unquantised=self.heldout(held, False))

    def sync(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def compare(self, chunk):
        """The first row through the fast forward and through plain f32 on the CPU."""
        w = params.cast(self.backbone, self.kinds, self.dtype, True)
        h, _ = self.model.forward(w, chunk[0], chunk[2], self.biases)
        fast = (h.detach().view(*chunk[0].shape, -1)[0] @ w["head.weight"].detach().T).float().cpu()
        m = {n: t.cpu() for n, t in self.backbone.items()}
        _, _, tables = config.build(self.o.tokenizer)
        with torch.no_grad():
            w = params.cast(m, self.kinds, torch.float32, True)
            h, _ = Model(self.cfg, tables, self.o.seq, "cpu").forward(w, chunk[0][:1].cpu(), chunk[2][:1].cpu(), [b.cpu() for b in self.biases])
            slow = h @ w["head.weight"].T
        ok = chunk[1][0].cpu() >= 0
        e = ((fast - slow).abs().amax(1) / slow.abs().amax(1))[ok]
        self.log(event="compare", rows=int(ok.sum()), error_median=e.median().item(), error_90=e.quantile(0.9).item(), error_max=e.max().item(),
                 same_top=(fast.argmax(1) == slow.argmax(1))[ok].float().mean().item())

    def train_drafts(self, loader, held):
        """Backbone frozen and quantised as exported; anchors where the answer follows."""
        o, cfg = self.o, self.cfg
        opt = self.optimizer(self.drafts)
        rows = cfg["dspark_block_size"]
        leaves = params.cast(self.backbone, self.kinds, self.dtype, True)
        frozen = {n: t.detach() for n, t in leaves.items()}
        gen = torch.Generator(device=self.device).manual_seed(o.seed)
        span = torch.arange(rows, device=self.device)

        def part(tok, target, start, score, w, loads):
            taps = []
            h, _ = self.model.forward(leaves, tok, start, self.biases, taps=taps)      # gradients stay on: same compiled forms as before
            h, taps = h.detach(), [t.detach() for t in taps]
            with torch.no_grad():
                # anchor p: rows p + 1 .. p + 5 predict tokens of the same document that carry loss
                can = (target >= 0) & (start == start.roll(-1, 1))
                can[:, -rows - 3:] = False
                anchor = torch.where(can, score, -1.0).topk(o.anchors, 1)[1].clamp(max=tok.shape[1] - rows - 4)
                at = anchor[..., None] + 1 + span
                ok = target.gather(1, at.flatten(1)).view(*at.shape) >= 0
                ok &= start.gather(1, at.flatten(1)).view(*at.shape) == start.gather(1, anchor)[..., None]
                ok &= can.gather(1, anchor)[..., None]
                ok = ok.long().cumprod(-1).bool()
            with plain_calls():
                return speculate.block_loss(self.model, w, tok, start, self.biases, h, taps, anchor, ok, loads)

        def draft_step(tok, target, start, score, lr, qat):
            w = params.cast(self.drafts, self.kinds, self.dtype, qat)
            loads = []
            loss, stats = part(tok, target, start, score, {**frozen, **w}, loads)
            loss.backward()
            with torch.no_grad():
                norm = opt.step({n: w[n].grad if w[n].grad is not None else torch.zeros_like(w[n]) for n in self.drafts}, lr)
                self.balance(loads, range(self.layers, self.layers + len(loads)))
            return loss.detach(), norm, stats["accept"], stats["hit"]

        def draw(batch):
            return torch.rand(batch[1].shape, device=self.device, generator=gen)

        begun, step, steps, marked = time.time(), 0, o.draft_steps or 10 ** 9, None
        Step.pool = None        # the backbone's graphs are gone, and with them their pool
        fast = {q: Step(lambda *x, q=q: draft_step(*x, q), self.log) for q in (False, True)}
        while step < steps:
            lr = schedule(step, steps, o.draft_lr, 50, 0.5)
            qat = step >= 0.6 * steps
            batch = loader.get()
            args = (*batch, draw(batch), torch.tensor(lr, device=self.device))
            if step < 3:
                loss, norm, accept, hit = draft_step(*args, qat)
            else:
                if fast[qat].graph is None:
                    loader.settle()
                loss, norm, accept, hit = fast[qat](*args)
            step += 1
            if step in (10, 30) and not o.draft_steps:
                self.sync()
                if step == 30:
                    per = (time.time() - marked) / 20
                    steps = step + max(1, int((o.draft_seconds - (time.time() - begun)) / (per * 1.04)))
                    self.log(event="draft plan", steps=steps, ms_per_step=per * 1000)
                marked = time.time()
            if step % 50 == 0 or step == steps or step == 1:
                self.log(draft_step=step, loss=loss.item(), grad_norm=norm.item(), lr=lr, accept=[round(x, 4) for x in accept.tolist()],
                         hit=[round(x, 4) for x in hit.tolist()])
        w = {**frozen, **{n: t.detach() for n, t in params.cast(self.drafts, self.kinds, self.dtype, True).items()}}
        for name, batch in held.items():
            with torch.no_grad():
                score = draw(batch)
            loss, stats = part(*batch, score, w, None)
            self.log(event="draft heldout", on=name, loss=loss.item(), accept=[round(x, 4) for x in stats["accept"].tolist()], hit=[round(x, 4) for x in stats["hit"].tolist()])


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--tokenizer", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--seconds", type=float, default=420)
    a.add_argument("--draft-seconds", type=float, default=50)
    a.add_argument("--steps", type=int, default=0, help="exact number of steps instead of --seconds: repeats a run")
    a.add_argument("--draft-steps", type=int, default=0)
    a.add_argument("--resume", help="exported model to go on from")
    a.add_argument("--fresh-drafts", action="store_true")
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--lr", type=float, default=6e-3)
    a.add_argument("--draft-lr", type=float, default=3e-3)
    a.add_argument("--warm", type=int, default=100)
    a.add_argument("--decay-from", type=float, default=0.4)
    a.add_argument("--qat-from", type=float, default=0.75)
    a.add_argument("--stages", default="pre,tune", help="mixtures of reference/data/mix.py")
    a.add_argument("--tune-from", type=int, default=2500, help="chunk (= step) from which the second mixture holds")
    a.add_argument("--index-weight", type=float, default=0.1)
    a.add_argument("--anchors", type=int, default=32)
    a.add_argument("--compare", action="store_true", help="compare the fast forward with a plain one on the CPU")
    a.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 3))
    a.add_argument("--rows", type=int, default=ROWS)
    a.add_argument("--seq", type=int, default=SEQ)
    o = a.parse_args()
    os.makedirs(o.out, exist_ok=True)
    log = Log(os.path.join(o.out, "log.jsonl"))
    log(event="arguments", **vars(o))
    torch.manual_seed(o.seed)
    base = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    folder = os.path.join(base, "chunks")
    os.makedirs(folder)
    ctx = multiprocessing.get_context("spawn")
    workers = [ctx.Process(target=mix.work, args=(o.tokenizer, folder, i, o.workers, o.seed, o.rows, o.seq, o.stages.split(","), o.tune_from, 600), daemon=True) for i in range(o.workers)]
    try:
        t = Trainer(o, log)
        for p in workers:
            p.start()
        held = {k: to_device(c, t.device) for k, c in mix.held_out(o.tokenizer, o.rows, o.seq).items()}
        loader = Loader(folder, 0, t.device)
        if o.seconds > 0 or o.steps:
            t.pretrain(loader, held)
        size = export.save(o.out, o.tokenizer, config.SHAPE, t.masters, t.biases)
        if o.compare:
            t.compare(held["natural"])
        if o.draft_seconds > 0 or o.draft_steps:
            t.train_drafts(loader, held)
        size = export.save(o.out, o.tokenizer, config.SHAPE, t.masters, t.biases)
        log(event="exported", bytes=size, peak_gib=torch.cuda.max_memory_allocated() / 2 ** 30 if t.device == "cuda" else 0.0)
    finally:
        for p in workers:
            if p.pid:
                p.terminate()
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
