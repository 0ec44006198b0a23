"""Time of convolving several clients at once, layer by layer: one lane at a time or grouped.

    python benchmarks/convolutions.py [--lanes 1,5,10,20] [--first-choice]
                                     [--out results/performance/convolutions.json]

Microseconds per client and pass (forward, input gradient, weight gradient), batch 256, bf16, channels last. With
--first-choice cuDNN does not time its algorithms.
"""

import argparse
import json
from pathlib import Path

import torch

LAYERS = {  # name: (in, out, kernel, stride, padding, size)
    "conv2 5x5 /2": (64, 128, 5, 2, 2, 32),
    "conv2 blocked": (256, 128, 3, 1, 1, 16),
    "conv3, conv4": (128, 128, 3, 1, 1, 16),
    "conv5": (128, 256, 3, 1, 1, 16),
    "conv6, conv7": (256, 256, 3, 1, 1, 8),
    "conv8": (256, 256, 3, 1, 0, 8),
}
BATCH = 256


def timed(call, lanes: int) -> float:
    for _ in range(3):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            call()
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    best = []
    for _ in range(5):
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        best.append(first.elapsed_time(last) * 1e3 / 10 / lanes)
    return sorted(best)[2]


def layer(inp: int, out: int, kernel: int, stride: int, padding: int, size: int, lanes: int) -> dict[str, float]:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)

    x, w = random(BATCH, lanes * inp, size, size), random(lanes * out, inp, kernel, kernel)
    y = torch.nn.functional.conv2d(x, w, stride=stride, padding=padding, groups=lanes)
    dy = torch.randn_like(y)

    def backward(mask: list[bool]):
        return torch.ops.aten.convolution_backward(
            dy, x, w, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], lanes, mask
        )

    return {
        "forward": timed(lambda: torch.nn.functional.conv2d(x, w, stride=stride, padding=padding, groups=lanes), lanes),
        "input": timed(lambda: backward([True, False, False]), lanes),
        "weight": timed(lambda: backward([False, True, False]), lanes),
        "gflop": 2 * BATCH * y.shape[2] * y.shape[3] * inp * out * kernel**2 / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lanes", default="1,5,10,20")
    parser.add_argument("--first-choice", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("results/performance/convolutions.json"))
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = not arguments.first_choice
    rows = []
    for name, shape in LAYERS.items():
        for lanes in map(int, arguments.lanes.split(",")):
            found = layer(*shape, lanes)
            rows.append({"layer": name, "lanes": lanes, **found})
            passes = "  ".join(f"{p} {found[p]:6.1f} us" for p in ("forward", "input", "weight"))
            rate = 3 * found["gflop"] / sum(found[p] for p in ("forward", "input", "weight")) * 1e-3 * 1e6 / 1e0
            print(f"{name:14} {lanes:3} lanes  {passes}  {rate / 1e3:5.0f} TFLOP/s", flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
