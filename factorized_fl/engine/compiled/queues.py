"""Queues of work on a device: CUDA streams. On a CPU every call runs at once, so they do nothing."""

from collections import deque
from contextlib import AbstractContextManager, nullcontext

import torch


class Queue:
    """One stream of a GPU; on a CPU its methods do nothing."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.marks: deque[torch.cuda.Event] = deque()

    def using(self) -> AbstractContextManager[object]:
        """Puts all work inside the context on this queue."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def follow(self, other: "Queue | None" = None) -> None:
        """Lets this queue wait for the work that another queue, or the caller's own, has now."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream() if other is None else _stream(other))

    def lead(self) -> None:
        """Lets the caller's queue wait for the work that this queue has now."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)

    def reads(self, *tensors: torch.Tensor) -> None:
        """Keeps the memory of tensors of another queue until this queue has done its present work."""
        if self.stream is not None:
            for tensor in tensors:
                tensor.record_stream(self.stream)

    def limit(self, ahead: int) -> None:
        """Marks this moment, and waits for the mark `ahead` calls ago, so that prepared batches do not pile up."""
        if self.stream is not None:
            mark = torch.cuda.Event()
            mark.record(self.stream)
            self.marks.append(mark)
            if len(self.marks) > ahead:
                self.marks.popleft().synchronize()


def _stream(queue: Queue) -> torch.cuda.Stream:
    assert queue.stream is not None
    return queue.stream
