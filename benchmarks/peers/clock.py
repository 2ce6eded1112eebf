"""How long calls take. Used by the table and, with nothing but Python, by the scripts of peers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


def fastest(call: Callable[[], object], within: float = 0.3, repeats: int = 7) -> float:
    """The least of `repeats` times of a call, after one that does not count, in about `within` seconds: what it takes
    when nothing else disturbs it. A call that takes longer than that is made twice more all the same."""
    call()
    first = _time(call, 1)
    if first > within:
        return min(first, _time(call, 1), _time(call, 1))
    times = max(1, math.floor(within / repeats / first))
    return min(_time(call, times) for _ in range(repeats))


def side_by_side(*calls: Callable[[], object], repeats: int = 5) -> list[float]:
    """The least time of each of several calls, made in turns, so that all suffer alike from what else goes on."""
    for call in calls:
        call()
    times = [[_time(call, 1) for call in calls] for _ in range(repeats)]
    return [min(column) for column in zip(*times, strict=True)]


def _time(call: Callable[[], object], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times
