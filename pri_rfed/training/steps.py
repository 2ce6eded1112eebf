"""Step sizes of the local descent, all of them public."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class StepSize:
    """eta(k, t): the step size at local step k = 0, 1, ... of round t = 0, 1, ...

    schedule: "constant" stays at `initial`; "inverse" is initial / (1 + k/decay); "inverse-sqrt" is
    initial / sqrt(1 + k/decay). rounds: where given, everything is divided by 1 + t/rounds besides.
    """

    initial: float
    schedule: Literal["constant", "inverse", "inverse-sqrt"] = "constant"
    decay: float = 1.0
    rounds: float | None = None

    def __post_init__(self) -> None:
        if self.schedule not in ("constant", "inverse", "inverse-sqrt"):
            raise ValueError(
                f"step size: schedule = {self.schedule!r} must be 'constant', 'inverse' or 'inverse-sqrt'"
            )
        for name in ("initial", "decay", "rounds"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"step size: {name} = {value!r} must be a positive finite number")

    def __call__(self, step: int, round: int = 0) -> float:
        eta = self.initial if self.rounds is None else self.initial / (1 + round / self.rounds)
        if self.schedule == "inverse":
            return eta / (1 + step / self.decay)
        if self.schedule == "inverse-sqrt":
            return eta / math.sqrt(1 + step / self.decay)
        return eta

    @classmethod
    def of(cls, value: StepSize | float) -> StepSize:
        """A number is a constant step size."""
        return value if isinstance(value, StepSize) else cls(float(value))

    @classmethod
    def strongly_convex(cls, beta: float) -> StepSize:
        """1 / (beta (k + 1)), for losses that are geodesically beta-strongly convex
        (dp-riemannian-optimization.txt, Theorem 3)."""
        if not (math.isfinite(beta) and beta > 0):
            raise ValueError(f"step size: beta = {beta!r} must be a positive finite number")
        return cls(1.0 / beta, "inverse")
