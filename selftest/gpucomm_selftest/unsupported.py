"""Tells "this build does not offer it" from "it is broken", by what torch really says.

Only the sentences below count: "not supported" alone also stands in errors of drivers, of RDMA
and of peer access, which are failures.
"""

import re

_REFUSALS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"^backend \S+ does not support \S+",
        r"^processgroup\w+ does not support \S+",
        r"^processgroup\w+::?\S* (is )?not (supported|implemented)",
        r"^no support for \S+ in \S+ process group",
        r"^invalid scalar type",
        r"^unsupported (scalar|data) ?type",
        r"^unhandled (scalar|data) ?type",
        r"^input tensor data type is not supported for \w+ process group",
        r"^unconvertible nccl type",
        r"^unsupported float8 type for nccl reduction",
        r"^all_reduce does not support \S+ on complex tensors",
        r"^cannot use reduceop\.\w+ with ",
        r"^only tensors on .* are supported",
        r"not implemented for '(half|bfloat16|long)'",
    )
)


def is_refusal(kind: str, text: str) -> bool:
    """Whether an exception of this type and text says that the backend lacks the operation."""
    if kind == "NotImplementedError":
        return True
    if kind not in ("RuntimeError", "ValueError", "TypeError", "DistBackendError"):
        return False
    first_line = text.strip().splitlines()[0] if text.strip() else ""
    return any(pattern.search(first_line) for pattern in _REFUSALS)
