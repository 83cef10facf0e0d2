"""Self-attention against a recurrent and a convolutional layer: time of one layer by the length of the sequence.

    python -m bench.profile.layers

What the table of docs/self-attention.md compares: softmax(Q K^T / sqrt(d)) V for all heads, an Elman recurrence and a
convolution of KERNEL positions, each from (1, n, WIDTH) to the same shape with torch, forward only, on one thread.
Every round takes each layer at each length three times, in seconds of that thread; the best round counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attendant.model.attention import join_heads, split_heads
from bench.profile.growth import exponent
from bench.report.record import RESULTS, RESULTS_HERE, write_record

WIDTH, HEADS, KERNEL = 512, 8, 3
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
IN_A_ROW = 3  # the first finds cold caches
NAMES = ("self-attention", "recurrent", "convolutional")


class SelfAttention(nn.Module):
    """torch's fused kernel; queries, keys and values are the input: projections are not part of the comparison."""

    def forward(self, x: Tensor) -> Tensor:
        x = split_heads(x, HEADS)
        return join_heads(F.scaled_dot_product_attention(x, x, x))


class Recurrent(nn.Module):
    """h_t = tanh(W x_t + U h_(t-1))"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.RNN(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x)[0]


class Convolutional(nn.Module):
    """Each position from itself and its neighbours."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, KERNEL, padding=KERNEL // 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.mT).mT


def make_layer(name: str, width: int = WIDTH) -> nn.Module:
    torch.manual_seed(0)
    layers: dict[str, Callable[[], nn.Module]] = {
        "self-attention": SelfAttention,
        "recurrent": lambda: Recurrent(width),
        "convolutional": lambda: Convolutional(width),
    }
    return layers[name]().eval()


def operations(name: str, length: int, width: int = WIDTH) -> int:
    """Multiplications of one layer, the leading term."""
    terms = {
        "self-attention": 2 * length**2 * width,  # Q K^T, and the weighted sum of V
        "recurrent": 2 * length * width**2,  # W x and U h
        "convolutional": KERNEL * length * width**2,
    }
    return terms[name]


def turn(name: str, length: int) -> Callable[[], None]:
    layer, x = make_layer(name), torch.randn(1, length, WIDTH)

    def run() -> None:
        with torch.inference_mode():
            layer(x)

    return run


def measure(rounds: int) -> list[dict[str, Any]]:
    turns = {(name, n): turn(name, n) for name in NAMES for n in LENGTHS}
    best = dict.fromkeys(turns, float("inf"))
    for _ in range(rounds):
        for key, run in turns.items():
            for _ in range(IN_A_ROW):
                started = time.thread_time()
                run()
                best[key] = min(best[key], time.thread_time() - started)
    rows = []
    for name in NAMES:
        times = {n: best[name, n] for n in LENGTHS}
        rows.append(
            {
                "layer": name,
                "ms": {str(n): round(1e3 * taken, 3) for n, taken in times.items()},
                "million_operations": {str(n): round(operations(name, n) / 1e6, 3) for n in LENGTHS},
                "exponent": round(exponent({n: times[n] for n in LENGTHS[-5:]}), 2),  # fitted to the last three
            }
        )
        print(f"{name}: {rows[-1]['ms']} ms, growing with length^{rows[-1]['exponent']} at the end")
    return rows


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    for axes, key, label in zip(
        figure.subplots(1, 2), ("million_operations", "ms"), ("million multiplications", "milliseconds"), strict=True
    ):
        for row in rows:
            axes.loglog(
                [int(n) for n in row[key]], list(row[key].values()), marker="o", markersize=3, label=row["layer"]
            )
        axes.axvline(WIDTH, color="grey", linestyle=":", linewidth=1)
        axes.set(xlabel=f"length (dotted: the width, {WIDTH})", ylabel=label)
        axes.set_xticks(LENGTHS, labels=[str(n) for n in LENGTHS])
        axes.minorticks_off()
        axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of one layer by length: attention, recurrence, convolution.")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "layers.json")
    parser.add_argument("--plot", type=Path, default=RESULTS.parent.parent / "docs" / "plots" / "layers.png")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(options.rounds)
    write_record(
        options.out, "bench.profile.layers", rows, width=WIDTH, heads=HEADS, kernel=KERNEL, torch=torch.__version__
    )
    draw(rows, options.plot)


if __name__ == "__main__":
    main()
