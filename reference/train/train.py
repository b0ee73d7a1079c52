"""Trains the demonstration model, one phase of plan.py a call: language and conversations, longer rows, DSpark blocks.

    python train.py first|second|long|longer|draft OUT

OUT holds tokenizer.json. A phase goes on from OUT/state.pt (masters, router biases, optimizer) and replaces it when it is done; the same
weights are exported to OUT/PHASE. A phase that was broken off is run again. Figures go to OUT/PHASE/log.jsonl, one JSON object a line."""

import argparse
import os

import loop
from loop import Step, to_device

import torch

import config
import export
import mix
import params
import plan
import speculate
from model import Model, cross_entropy, cuts, plain_calls
from optim import Optimizer


class Trainer:
    def __init__(self, o, phase, log):
        self.o, self.phase, self.log = o, phase, log
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        self.shape = "tiny" if o.tiny else "demo"
        self.tokenizer, self.path = os.path.join(o.out, "tokenizer.json"), os.path.join(o.out, "state.pt")
        _, self.cfg, self.tables = config.build(self.tokenizer, config.SHAPES[self.shape])
        self.model = Model(self.cfg, self.tables, phase["seq"], self.device)
        self.kinds = {n: k for n, (_, k, _) in params.spec(self.cfg).items()}
        first = o.phase == next(iter(plan.PHASES))
        self.optimizer_state = None
        if first:
            self.masters, self.biases = params.init(self.cfg, o.seed, self.device), params.init_biases(self.cfg, self.device)
        else:
            state = torch.load(self.path, map_location=self.device, weights_only=True)
            self.masters, self.biases, self.optimizer_state = state["masters"], state["biases"], state["optimizer"]
        self.backbone = {n: t for n, t in self.masters.items() if not n.startswith("mtp.")}
        self.drafts = {n: t for n, t in self.masters.items() if n.startswith("mtp.")}
        self.layers = self.cfg["num_hidden_layers"]
        self.gen = torch.Generator(device=self.device).manual_seed(o.seed)
        log(event="start", device=torch.cuda.get_device_name() if self.device == "cuda" else "cpu", torch=torch.__version__, shape=self.shape,
            phase={**phase, "name": o.phase}, parameters=sum(t.numel() for t in self.backbone.values()), draft_parameters=sum(t.numel() for t in self.drafts.values()))

    def optimizer(self, weights):
        return Optimizer(weights, {n for n in weights if params.uses_muon(n, self.kinds[n])})

    def balance(self, loads, which, rate=0.001):
        for i, c in zip(which, loads):
            c = c.float()
            self.biases[i] += rate * torch.sign(c.mean() - c)

    def cut(self, start):
        return cuts(start, plan.CUT_PERIOD, plan.CUT_EVERY, self.gen)

    def step(self, opt, tok, target, start, cut, lr):
        """One optimizer step; lr is a tensor. Returns loss, index loss, balance loss, gradient norm, fullest expert over the mean load."""
        w = params.cast(self.backbone, self.kinds, self.dtype, self.phase["qat"])
        loads = []
        h, iloss, even = self.model.forward(w, tok, start, self.biases, cut=cut, index_rows=max(1, tok.shape[0] // 16), loads=loads)
        loss = cross_entropy(h, w["head.weight"], target.flatten()) / (target >= 0).sum().clamp(min=1)
        (loss + plan.INDEX_WEIGHT * iloss + plan.BALANCE_WEIGHT * even).backward()
        with torch.no_grad():
            norm = opt.step({n: w[n].grad if w[n].grad is not None else torch.zeros_like(w[n]) for n in self.backbone}, lr)
            self.balance(loads, range(self.layers))
            loads = torch.stack(loads)
            return loss.detach(), iloss.detach(), even.detach() / self.layers, norm, (loads.amax(1) / loads.float().mean(1)).max()

    def heldout(self, chunks, qat):
        """Loss per kind; `cut`: of natural text with decoder windows cut every 256 tokens on average. Gradients stay on, unused: the
        compiled forms of training are reused."""
        out = {}
        w = params.cast(self.backbone, self.kinds, self.dtype, qat)
        fixed = torch.Generator(device=self.device).manual_seed(7)
        jobs = [(k, c, None) for k, c in chunks.items()]
        jobs.append(("cut", chunks["natural"], cuts(chunks["natural"][2], plan.CUT_PERIOD, 1, fixed)))
        for name, (tok, target, start), cut in jobs:
            h = self.model.forward(w, tok, start, self.biases, cut=cut)[0]
            out[name] = (cross_entropy(h, w["head.weight"], target.flatten()) / (target >= 0).sum()).item()
            del h
        return out

    def pretrain(self, loader, held):
        p = self.phase
        opt = self.optimizer(self.backbone)
        if self.optimizer_state:
            opt.load(self.optimizer_state)
        done, per_step = plan.before(self.o.phase)[0], p["rows"] * p["seq"]
        took = loop.run(Step(lambda *x: self.step(opt, *x), self.log, loader), loader, self.log, p["steps"], lambda i: plan.learning_rate(done + i * per_step),
                        prepare=lambda tok, target, start: (tok, target, start, self.cut(start)), names=("loss", "index_loss", "balance", "grad_norm", "load_max"), tokens=done, device=self.device)
        loader.settle()
        self.log(event="backbone done", heldout=self.heldout(held, True), heldout_unquantised=self.heldout(held, False), **took)
        return opt

    def compare(self, chunk):
        """The first row through the fast forward and through plain f32 on the CPU."""
        w = params.cast(self.backbone, self.kinds, self.dtype, True)
        h = self.model.forward(w, chunk[0], chunk[2], self.biases)[0]
        fast = (h.detach().view(*chunk[0].shape, -1)[0] @ w["head.weight"].detach().T).float().cpu()
        m = {n: t.cpu() for n, t in self.backbone.items()}
        with torch.no_grad():
            w = params.cast(m, self.kinds, torch.float32, True)
            h = Model(self.cfg, self.tables, self.phase["seq"], "cpu").forward(w, chunk[0][:1].cpu(), chunk[2][:1].cpu(), [b.cpu() for b in self.biases])[0]
            slow = h @ w["head.weight"].T
        ok = chunk[1][0].cpu() >= 0
        e = ((fast - slow).abs().amax(1) / slow.abs().amax(1))[ok]
        self.log(event="compare", rows=int(ok.sum()), error_median=e.median().item(), error_90=e.quantile(0.9).item(), error_max=e.max().item(),
                 same_top=(fast.argmax(1) == slow.argmax(1))[ok].float().mean().item())

    def train_drafts(self, loader, held):
        """Backbone frozen and quantised as exported; anchors where the answer follows."""
        p, cfg = self.phase, self.cfg
        opt = self.optimizer(self.drafts)
        rows = cfg["dspark_block_size"]
        leaves = params.cast(self.backbone, self.kinds, self.dtype, True)
        frozen = {n: t.detach() for n, t in leaves.items()}
        span = torch.arange(rows, device=self.device)

        def part(tok, target, start, cut, score, w, loads):
            taps = []
            h = self.model.forward(leaves, tok, start, self.biases, cut=cut, taps=taps)[0]      # gradients stay on: same compiled forms as before
            h, taps = h.detach(), [t.detach() for t in taps]
            with torch.no_grad():
                # anchor p: rows p + 1 .. p + 5 predict tokens of the same document that carry loss, with no cut between
                can = (target >= 0) & (start == start.roll(-1, 1))
                can[:, -rows - 3:] = False
                anchor = torch.where(can, score, -1.0).topk(p["anchors"], 1)[1].clamp(max=tok.shape[1] - rows - 4)
                at = anchor[..., None] + 1 + span
                ok = target.gather(1, at.flatten(1)).view(*at.shape) >= 0
                ok &= cut.gather(1, at.flatten(1)).view(*at.shape) == cut.gather(1, anchor)[..., None]
                ok &= can.gather(1, anchor)[..., None]
                ok = ok.long().cumprod(-1).bool()
            with plain_calls():
                return speculate.block_loss(self.model, w, tok, cut, self.biases, h, taps, anchor, ok, loads)

        def draft_step(qat, tok, target, start, cut, score, lr):
            w = params.cast(self.drafts, self.kinds, self.dtype, qat)
            loads = []
            loss, stats = part(tok, target, start, cut, score, {**frozen, **w}, loads)
            loss.backward()
            with torch.no_grad():
                norm = opt.step({n: w[n].grad if w[n].grad is not None else torch.zeros_like(w[n]) for n in self.drafts}, lr)
                self.balance(loads, range(self.layers, self.layers + len(loads)))
            return loss.detach(), norm, stats["accept"], stats["hit"]

        def draw(tok, target, start):
            return tok, target, start, self.cut(start), torch.rand(target.shape, device=self.device, generator=self.gen)

        free = p["steps"] * 6 // 10
        for qat, steps, first in ((False, free, 0), (True, p["steps"] - free, free)):
            took = loop.run(Step(lambda *x, q=qat: draft_step(q, *x), self.log, loader), loader, self.log, steps, lambda i, f=first: plan.draft_rate(f + i),
                            prepare=draw, names=("loss", "grad_norm", "accept", "hit"), device=self.device)
            self.log(event="drafts done", qat=qat, **took)
        w = {**frozen, **{n: t.detach() for n, t in params.cast(self.drafts, self.kinds, self.dtype, True).items()}}
        for name, (tok, target, start) in held.items():
            with torch.no_grad():
                score = torch.rand(target.shape, device=self.device, generator=self.gen)
            loss, stats = part(tok, target, start, start, score, w, None)
            self.log(event="draft heldout", on=name, loss=loss.item(), accept=stats["accept"].tolist(), hit=stats["hit"].tolist())

    def save(self, opt):
        with torch.no_grad():
            torch.save(dict(shape=self.shape, masters=self.masters, biases=self.biases, optimizer=opt.state() if opt else None), self.path + ".new")
        os.replace(self.path + ".new", self.path)
        size = export.save(os.path.join(self.o.out, self.o.phase), self.tokenizer, config.SHAPES[self.shape], self.masters, self.biases)
        self.log(event="exported", bytes=size, peak_gib=torch.cuda.max_memory_allocated() / 2 ** 30 if self.device == "cuda" else 0.0)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("phase", choices=(*plan.PHASES, "draft"))
    loop.options(a)
    o = a.parse_args()
    workers = plan.tiny() if o.tiny else plan.WORKERS
    if o.tiny:
        torch.set_num_threads(1)        # small products are slower on more
    drafts = o.phase == "draft"
    phase = plan.DRAFT if drafts else plan.PHASES[o.phase]
    os.makedirs(os.path.join(o.out, o.phase), exist_ok=True)
    log = loop.Log(os.path.join(o.out, o.phase, "log.jsonl"))
    torch.manual_seed(o.seed)
    t = Trainer(o, phase, log)
    with loop.Feed(t.tokenizer, phase, workers, f"{o.seed}/{o.phase}", 0 if drafts else plan.before(o.phase, o.natural)[1], o.natural, t.device) as loader:
        held = {k: to_device(c, t.device) for k, c in mix.held_out(t.tokenizer, phase["rows"], phase["seq"]).items()}
        if drafts:
            log(event="backbone", heldout=t.heldout(held, True), heldout_unquantised=t.heldout(held, False))
            t.compare(held["natural"])
            opt = t.train_drafts(loader, held)
        else:
            opt = t.pretrain(loader, held)
    t.save(opt)


if __name__ == "__main__":
    main()
