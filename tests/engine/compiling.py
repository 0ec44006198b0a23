"""Compiles every Triton kernel for an H200 on any machine: each launch is replaced by a call of the compiler.

python -m tests.engine.compiling prints, for every launch of training and evaluating ResNet-9, the kernel, the types of
its tensors, and the needs of a program: registers per thread, bytes of stack (spilled registers) and bytes of shared
memory.
"""

import re
import subprocess
import tempfile
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from factorized_fl.engine.resnet9_cuda import first_kernels, input_kernels, norm_kernels
from factorized_fl.engine.resnet9_cuda.augment import make_batch, plain_row
from factorized_fl.engine.resnet9_cuda.stacked import StackedResNet9
from factorized_fl.nn import factorize
from factorized_fl.nn.models import build_model

H200 = GPUTarget("cuda", 90, 32)
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int64: "*i64", torch.uint8: "*u8"}
LANES, BATCH = 2, 2

compiled: dict[Any, Any] = {}


def compile_instead(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, num_warps: int = 4, **named: Any) -> None:
    values = dict(zip(kernel.arg_names, args, strict=False)) | named
    fixed = {param.name for param in kernel.params if param.is_constexpr}
    signature = {name: "constexpr" if name in fixed else kind(values[name]) for name in kernel.arg_names}
    place = {name: (index,) for index, name in enumerate(kernel.arg_names)}
    # A launch passes to the compiler the addresses and numbers that are multiples of 16.
    even = {place[name]: [["tt.divisibility", 16]] for name in place if name not in fixed and divisible(values[name])}
    key = (kernel, *signature.values(), *(values[name] for name in sorted(fixed)), *even)
    if key not in compiled:
        constants = {place[name]: values[name] for name in fixed}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=even)
        compiled[key] = triton.compile(source, target=H200, options={"num_warps": num_warps})


def kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    return "i32" if isinstance(value, int) else "fp32"


def divisible(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0)


def launch_everything(dtype: torch.dtype, factorised: bool) -> None:
    model = build_model("resnet9", 10)
    if factorised:
        factorize(model)
    tensors = {name: torch.stack([t] * LANES) for name, t in model.state_dict().items()}
    parameters = {name: tensors[name].requires_grad_() for name, _ in model.named_parameters()}
    stacked = StackedResNet9(model, dtype)
    for size in (16, 64, 32):  # a batch's kernel takes whole images; for the others their size hardly matters
        pixels = torch.zeros(LANES, BATCH, 3, size, size, dtype=dtype)
        pool = torch.zeros(4, 3, size, size, dtype=torch.uint8)
        positions, rows = torch.zeros(LANES * BATCH, dtype=torch.int64), plain_row(size, size).repeat(LANES * BATCH, 1)
        for jitter in (True, False):
            make_batch(pool, positions, rows, pixels, ((0.5,) * 3,) * 2, jitter)
    logits = stacked.logits(tensors, stacked.weights(tensors), pixels)
    torch.autograd.grad(logits.sum(), list(parameters.values()))
    model.eval()
    stacked.logits(tensors, stacked.weights(tensors), pixels)


def needs(made: Any) -> tuple[int, int, int]:
    """Return the registers, the bytes of stack and the bytes of shared memory."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        told = subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True)
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", told.stdout + told.stderr).groups()
    return int(registers), int(stack), made.metadata.shared


def main() -> None:
    JITFunction.run = compile_instead
    for dtype in (torch.bfloat16, torch.float32):
        for factorised in (False, True):
            launch_everything(dtype, factorised)
    for (kernel, *rest), made in compiled.items():
        types = ",".join(str(part) for part in rest if str(part).startswith("*"))
        print(f"{kernel.fn.__module__.rpartition('.')[2]}.{kernel.fn.__name__}", types, *needs(made))
    modules = (first_kernels, input_kernels, norm_kernels)
    kernels = {thing for module in modules for thing in vars(module).values() if isinstance(thing, JITFunction)}
    missing = {kernel.fn.__name__ for kernel in kernels} - {kernel.fn.__name__ for kernel, *_ in compiled}
    print("not launched:", ", ".join(sorted(name for name in missing if not name.startswith("_"))))


if __name__ == "__main__":
    main()
