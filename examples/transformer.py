"""A training step of a float32 transformer, its products by PyTorch and, with one line more, by this package.

    python -m examples.transformer [--model vit gpt] [--batch N] [--csv bench/results]

ViT-L of timm and GPT-2 medium of transformers, with random weights on random inputs: forward, cross entropy, backward.
Whatever the products' way, the rest is PyTorch's and the same, attention among it: the kernels behind
scaled_dot_product_attention are no calls of torch.bmm, so that nothing takes their place. Errors are against the same
step in float64. Without a CUDA GPU two tiny models run, each way as torch on the CPU has it, and nothing is timed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.environment import environment
from triton_sgemm import enable
from triton_sgemm.precision import torch_matmul_precision

from .report import report

ROUNDS = 3
STEPS = 3  # timed in each round
PARTS = 4  # of the batch, one after the other in float64, whose activations take twice the room

# what is switched on around a step, and torch's own switch: cuBLAS and cuDNN with TF32 or without
WAYS: dict[str, tuple[Callable[[], AbstractContextManager[object]], str]] = {
    "PyTorch": (nullcontext, "ieee"),
    'enable("ieee")': (partial(enable, "ieee"), "ieee"),
    'enable("fp32")': (partial(enable, "fp32"), "ieee"),
    "PyTorch, TF32": (nullcontext, "tf32"),
    'enable("tf32")': (partial(enable, "tf32"), "tf32"),
}


@dataclass(frozen=True)
class Task:
    """A model and what it is trained on; `logits` of (model, inputs) are (batch, ..., classes)."""

    title: str
    model: nn.Module
    inputs: Tensor
    targets: Tensor
    logits: Callable[[nn.Module, Tensor], Tensor]

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy, summed over these targets and divided by the number of all."""
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum") / self.targets.numel()


@dataclass(frozen=True)
class Row:
    """A training step; the errors are relative, Frobenius, of the logits and of all parameters' gradients together."""

    model: str
    parameters: int
    way: str
    output_error: float
    gradient_error: float
    ms: float | None = None


def vit(batch: int | None, on_gpu: bool) -> Task:
    """ViT-L/16 on images of 224 x 224: 197 tokens each."""
    import timm

    name, batch = ("vit_large_patch16_224", batch or 64) if on_gpu else ("vit_tiny_patch16_224", batch or 2)
    model = timm.create_model(name, pretrained=False)
    images, labels = torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))
    return Task(f"{name}, batch {batch}", model, images, labels, lambda model, images: model(images))


def gpt(batch: int | None, on_gpu: bool) -> Task:
    """GPT-2 medium on texts of 1024 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    name, width, layers, length, batch = (
        ("GPT-2 medium", 1024, 24, 1024, batch or 8) if on_gpu else ("GPT-2, tiny", 64, 2, 64, batch or 2)
    )
    config = GPT2Config(n_embd=width, n_layer=layers, n_head=width // 64, n_positions=length, use_cache=False)
    ids = torch.randint(config.vocab_size, (batch, length + 1))
    title = f"{name}, batch {batch} of {length} tokens"
    return Task(title, GPT2LMHeadModel(config), ids[:, :-1], ids[:, 1:], lambda model, ids: model(ids).logits)


MODELS = {"vit": vit, "gpt": gpt}
PACKAGES = {"vit": "timm", "gpt": "transformers"}


def step(task: Task) -> Tensor:
    """Forward and backward; returns the logits, and leaves the gradients in the model."""
    task.model.zero_grad()
    logits = task.logits(task.model, task.inputs)
    task.loss(logits, task.targets).backward()
    return logits.detach()


def in_float64(task: Task) -> tuple[Tensor, list[Tensor]]:
    """Logits and gradients of the same step, a part of the batch after the other."""
    model = deepcopy(task.model).double()
    parts = []
    size = -(-len(task.inputs) // PARTS)
    for inputs, targets in zip(task.inputs.split(size), task.targets.split(size), strict=True):
        logits = task.logits(model, inputs.double() if inputs.is_floating_point() else inputs)
        task.loss(logits, targets).backward()
        parts.append(logits.detach())
    return torch.cat(parts), gradients(model)


def gradients(model: nn.Module) -> list[Tensor]:
    """Those that the last backward left, in the parameters' order."""
    return [p.grad for p in model.parameters() if p.grad is not None]


def relative_error(found: Iterable[Tensor], exact: Iterable[Tensor]) -> float:
    """Frobenius, of all tensors together."""
    off, size = 0.0, 0.0
    for x, y in zip(found, exact, strict=True):
        off += (x.double() - y).square().sum().item()
        size += y.square().sum().item()
    return (off / size) ** 0.5


@contextmanager
def torch_precision(value: str) -> Iterator[None]:
    """torch's own products and convolutions, an image's patches are one, in `value`."""
    convolutions = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = convolutions.fp32_precision
    convolutions.fp32_precision = value
    try:
        with torch_matmul_precision(value):
            yield
    finally:
        convolutions.fp32_precision = before


def timed(task: Task) -> dict[str, float]:
    """Milliseconds a step of each way, by CUDA events: medians of ROUNDS in turn, each warmed up."""
    samples: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way, (enabled, switch) in WAYS.items():
            with torch_precision(switch), enabled():
                step(task)
                for _ in range(STEPS):
                    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    start.record()
                    step(task)
                    end.record()
                    end.synchronize()
                    samples[way].append(start.elapsed_time(end))
    return {way: statistics.median(ms) for way, ms in samples.items()}


def measured(task: Task) -> list[Row]:
    """One row a way."""
    model = task.model.eval()  # no dropout: every way computes the same
    exact, exact_gradients = in_float64(task)
    found = {}
    for way, (enabled, switch) in WAYS.items():
        with torch_precision(switch), enabled():
            logits = step(task)
        found[way] = relative_error([logits], [exact]), relative_error(gradients(model), exact_gradients)
    del exact, exact_gradients, logits
    times = timed(task) if task.inputs.is_cuda else {}
    parameters = sum(p.numel() for p in model.parameters())
    return [Row(task.title, parameters, way, *errors, times.get(way)) for way, errors in found.items()]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.transformer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS), help="default: both")
    parser.add_argument("--batch", type=int, metavar="N", help="images or texts a step")
    parser.add_argument("--csv", type=Path, metavar="FOLDER", help="write <gpu>/example_transformer.csv there")
    args = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    print(environment().header(), end="\n\n")
    if not on_gpu:
        print("No CUDA GPU: tiny models, and every way is torch on the CPU. They show that it runs, and no more.\n")
    rows: list[Row] = []
    for name in args.model:
        torch.manual_seed(0)
        try:
            with torch.device("cuda" if on_gpu else "cpu"):
                task = MODELS[name](args.batch, on_gpu)
        except ImportError as e:
            parser.error(f"model {name} needs {PACKAGES[name]} ({e}): pip install {PACKAGES[name]}, or choose --model")
        rows += measured(task)
    report("transformer", rows, args.csv)


if __name__ == "__main__":
    main()
