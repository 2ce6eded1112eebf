"""How long a call takes."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable


def seconds(call: Callable[[], object], within: float = 0.05, repeats: int = 5) -> float:
    """The median of `repeats` times of one call, after one that does not count, in about `within` seconds. A call that
    takes longer than that is made twice, and its faster time is taken."""
    first = _of(call, 1)
    second = _of(call, 1)
    if first + second > within:
        return min(first, second)
    times = max(1, math.floor(within / repeats / second))
    return statistics.median(_of(call, times) for _ in range(repeats))


def _of(call: Callable[[], object], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times
