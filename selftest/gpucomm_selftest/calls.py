"""What a rank really asks of the process group, seen below torch's Python functions.

Runs only inside a rank. NCCL compares neither types nor sizes between ranks and returns garbage
where they differ; this is what shows it, and which rank it was. It must not change a call.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

# Before it, the operations of a process group cannot be seen by a dispatch mode.
_SINCE = (2, 3)


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


def describe(name: str, arguments: Any) -> str:
    """`allreduce float32[1021]`, `allgather 2 x float32[7], float32[7]`."""
    kinds = Counter(
        f"{str(tensor.dtype).removeprefix('torch.')}[{tensor.numel()}]"
        for tensor in _tensors(list(arguments))
    )
    named = ", ".join(kind if count == 1 else f"{count} x {kind}" for kind, count in kinds.items())
    return f"{name.partition('.')[0].rstrip('_')} {named}".strip()


def watching(tell: Callable[[str], None]) -> AbstractContextManager[Any]:
    """While it is open, each operation of a process group is told of before it begins."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    numbers = torch.__version__.split(".")
    if (int(numbers[0]), int(numbers[1])) < _SINCE:
        return nullcontext()

    class Watch(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # Nothing is compiled here, and to say so would import the compiler: a second.
            return False

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func.namespace == "c10d":
                tell(describe(func.__name__, args))
            return func(*args, **(kwargs or {}))

    return Watch()
