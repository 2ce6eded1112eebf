"""What is minimised: a loss for each record, and its Riemannian gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pri_rfed.manifolds.base import Array, Manifold
from pri_rfed.problems.clipping import clipped_mean


class Problem(ABC):
    """f(w; z) for a point w of `manifold` and one record z.

    A problem of one's own is a small class: set `manifold` and `record_shape` in `__init__` and write `loss` and
    `gradient`. The rest has defaults that work everywhere.
    """

    name: ClassVar[str]
    """Its key in `PROBLEMS` and in configurations."""
    protects: ClassVar[str] = ""
    """What of a record a guarantee is about, in words, where that is not all of it: neighbours then differ in that
    alone, which may make the bounds below smaller."""

    single_precision: ClassVar[bool] = False
    """Whether its records may be held in single precision, each number rounded towards 0 (`AgentArrays`): only where
    all that is assumed of a record, and that the bounds below rest on, stays true when its numbers become a little
    smaller in absolute value. `check_records` sees what was rounded. `optimum`, which is a diagnostic, is given all
    records as they are held, and must not sum in single precision; everything else is given them in double."""

    manifold: Manifold
    record_shape: tuple[int, ...]
    """Shape of one record."""
    gradient_bound: float | None = None
    """A number that ||grad f(w; z)||_w never exceeds, at any point w for any record that `check_records` lets pass.
    Where there is one, gradients need no clipping."""
    gradient_difference_bound: float | None = None
    """A number that ||grad f(w; z) - grad f(w; z')||_w never exceeds, for all w and any two records that
    `check_records` lets pass. It beats twice the clip bound where it is smaller. A gradient must then never be
    NaN or infinite: that would count as 0, which the bound does not cover."""

    @abstractmethod
    def loss(self, w: Array, z: Array) -> Array:
        """f(w; z), shape [...], for w [..., *point_shape] and z [..., *record_shape]; `...` broadcasts."""

    @abstractmethod
    def gradient(self, w: Array, z: Array) -> Array:
        """The Riemannian gradient of f(.; z) at w, shape [..., *point_shape]; `...` broadcasts."""

    def check_records(self, z: Array) -> None:
        """Raise ValueError, naming the first bad record and what is wrong with it, unless all of z [..., *record_shape]
        are records of this problem. It looks at each record by itself, never at the data set."""
        z = np.asarray(z)
        k = len(self.record_shape)
        if z.ndim < k or z.shape[z.ndim - k :] != self.record_shape:
            raise ValueError(f"{self.name}: records must have shape {self.record_shape}, not {z.shape[1:]}")
        bad = ~np.isfinite(z).all(axis=tuple(range(-k, 0)))
        if bad.any():
            at = tuple(map(int, np.argwhere(bad)[0]))
            raise ValueError(f"{self.name}: record {at} holds NaN or infinite numbers")

    def prepare_records(self, z: Array) -> Array:
        """The records as this problem uses them: checked, and where the problem says so, each by itself altered.

        Every agent's records pass through here once, before anything else sees them. Raises what `check_records` does.
        """
        z = np.asarray(z, dtype=float)
        self.check_records(z)
        return z

    def start(self, rng: np.random.Generator) -> Array:
        """Where a run begins when it is not told: a random point. It must not depend on data."""
        return self.manifold.random_point(rng)

    def clipped_mean(
        self, w: Array, z: Array, clip: float | None, mask: NDArray[np.bool_] | None, size: Array
    ) -> Array:
        """(1/size) sum_j clip(grad f(w; z_j)), the sum over the records axis: the one place where gradients meet.

        w [A, *point_shape], z [A, b, *record_shape], mask [A, b] (which records count; None: all), size [A] (the public
        denominators) -> [A, *point_shape]. `clip` None clips nothing. A gradient holding NaN or infinity counts as 0.

        A problem may override this with a faster way to the same numbers; a test compares the two.
        """
        return clipped_mean(self, w, z, clip, mask, size)

    def optimum(self, z: Array) -> Array | None:
        """A minimiser of the mean loss over the records z [n, *record_shape] in closed form or by a solver to full
        precision; None where there is none. A diagnostic, not private."""
        return None

    def distance(self, w: Array, optimum: Array) -> Array:
        """How far w is from a minimiser; from the nearest one where there are several. A diagnostic, not private."""
        return self.manifold.dist(w, optimum)
