"""What the training programs share: log, recorded steps, data from worker processes."""

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

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data"))

import mix

if torch.cuda.is_available():
    torch._dynamo.config.recompile_limit = 64


def rounded(x):
    if isinstance(x, dict):
        return {k: rounded(v) for k, v in x.items()}
    return [rounded(v) for v in x] if isinstance(x, list) else round(x, 5) if isinstance(x, float) else x


class Log:
    def __init__(self, path):
        self.f = open(path, "w", buffering=1)

    def __call__(self, **kw):
        kw["time"] = round(time.time() - T0, 2)
        line = json.dumps(rounded(kw))
        self.f.write(line + "\n")
        print(line, flush=True)


class Step:
    """A function of device tensors that is called many times with the same shapes: recorded as a CUDA graph at its fourth call, after
    plain calls have compiled everything. On the CPU, or if recording fails, it stays a plain call."""

    def __init__(self, fn, log, loader):
        self.fn, self.log, self.loader, self.graph = fn, log, loader, None
        self.plain = 3 if torch.cuda.is_available() else 10 ** 9

    def __call__(self, *inputs):
        if self.plain:
            self.plain -= 1
            return self.fn(*inputs)
        if self.graph is None:
            self.loader.settle()
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
                with torch.cuda.graph(graph):
                    self.out = self.fn(*self.inputs)
                self.graph = graph
                self.log(event="recorded", peak_gib=torch.cuda.max_memory_allocated() / 2 ** 30)
            except RuntimeError as e:
                self.log(event="not recorded", why=str(e)[:300])
                self.plain = 10 ** 9
                torch.cuda.synchronize()
            return out
        for a, b in zip(self.inputs, inputs):
            a.copy_(b, non_blocking=True)
        self.graph.replay()
        return tuple(x.clone() for x in self.out)


class Loader:
    """Chunks in order, one ahead on the device."""

    def __init__(self, folder, device):
        self.folder, self.g, self.device = folder, 0, device
        self.next = self.failed = None
        self.waited = 0.0
        self._start()

    def _read(self):
        try:
            path = os.path.join(self.folder, f"c{self.g:07d}.npy")
            t = time.time()
            while not os.path.exists(path):
                time.sleep(0.005)
                if time.time() - t > 300:
                    raise RuntimeError(f"no chunk {path}")
            self.waited += time.time() - t
            c = np.load(path)
            os.remove(path)
            self.g += 1
            self.next = to_device(c, self.device)
        except Exception as e:
            self.failed = e

    def _start(self):
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def settle(self):
        """Nothing of the loader touches the device until the next get()."""
        self.thread.join()

    def get(self):
        self.thread.join()
        if self.failed:
            raise self.failed
        out = self.next
        self._start()
        return out


class Feed:
    """Worker processes that write the chunks of one phase, and the loader that reads them: a context manager."""

    def __init__(self, tokenizer, phase, workers, seed, passes, natural, device):
        self.base = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.folder, self.device = os.path.join(self.base, "chunks"), device
        os.makedirs(self.folder)
        ctx = multiprocessing.get_context("spawn")
        self.workers = [ctx.Process(target=mix.work, daemon=True, args=(tokenizer, self.folder, i, workers, seed, phase["rows"], phase["seq"], phase["mix"], passes, natural, 300))
                        for i in range(workers)]

    def __enter__(self):
        for p in self.workers:
            p.start()
        return Loader(self.folder, self.device)

    def __exit__(self, *_):
        for p in self.workers:
            p.terminate()
        shutil.rmtree(self.base, ignore_errors=True)


def to_device(c, device):
    """chunk -> tokens, targets (-1: no loss), start [rows, seq]"""
    tok, loss = (c[0] & 0x7FFF).astype(np.int64), c[0] >> 15
    target = np.full_like(tok, -1)
    same = c[1][:, 1:] == c[1][:, :-1]
    target[:, :-1] = np.where((loss[:, 1:] == 1) & same, tok[:, 1:], -1)
    return tuple(torch.from_numpy(x).to(device, non_blocking=True) for x in (tok, target, c[1].astype(np.int64)))


def run(step, loader, log, steps, rate, prepare=lambda *x: x, names=("loss", "grad_norm"), tokens=0, device="cpu"):
    """Steps of one phase. step(*batch, learning rate) -> tensors called `names`, the first a loss; rate(step) -> learning rate;
    prepare(*batch): more inputs."""
    begun, losses = time.time(), []
    for i in range(steps):
        batch = loader.get()
        lr = rate(i)
        out = step(*prepare(*batch), torch.tensor(lr, device=device))
        losses.append(out[0])
        tokens += batch[0].numel()
        if (i + 1) % 50 == 0 or i + 1 in (1, 4, 5, 10, steps):
            values = dict(zip(names, [x.tolist() for x in (torch.stack(losses).mean(), *out[1:])]))
            log(step=i + 1, tokens=tokens, lr=lr, waited=loader.waited, **values)
            losses = []
            if not np.isfinite(values["loss"]):
                raise RuntimeError("loss is not finite")
    return dict(seconds=time.time() - begun, tokens=tokens)


def options(parser):
    """What the programs have in common."""
    parser.add_argument("out", help="folder of the run: state.pt, tokenizer.json, one folder for each phase")
    parser.add_argument("--tiny", action="store_true", help="a tiny shape and few steps, to try the programs on a CPU")
    parser.add_argument("--natural", help="folder with more natural text (NAME.txt.xz as in reference/data/natural)")
    parser.add_argument("--seed", type=int, default=1)
