"""Curves out of the rows of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pri_rfed.reproductions.base import Row


def medians(rows: Sequence[Row], along: str, key: str, **choice: Any) -> dict[int, float]:
    """Medians over the seeds of the entry `key`, of the rows that hold all of `choice`, by the entry `along`.
    None, for what is no number, counts as infinite."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if all(row[name] == value for name, value in choice.items()):
            found.setdefault(row[along], []).append(math.inf if row[key] is None else row[key])
    return {at: float(np.median(values)) for at, values in sorted(found.items())}
