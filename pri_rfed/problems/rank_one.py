"""Gradients that are products of two vectors: their clipped mean without forming a single one of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pri_rfed.manifolds.base import Array


@np.errstate(all="ignore")  # what is no number is looked for, and counts as 0
def clipped_sum(left: Array, right: Array, clip: float | None, mask: NDArray[np.bool_] | None) -> Array:
    """sum_j clip(left_j right_j^T) in the Frobenius norm, [A, m, r], for left [A, b, m], right [A, b, r], mask [A, b].

    ||left_j right_j^T|| = ||left_j|| ||right_j||, and clipping multiplies by a number, so the sum is a matrix product.
    A record whose product holds NaN or infinity counts as 0.
    """
    norms = np.sqrt(np.vecdot(left, left)) * np.sqrt(np.vecdot(right, right))
    good = np.isfinite(norms) if mask is None else np.isfinite(norms) & mask
    if not good.all():
        left, right = (np.where(good[..., None], x, 0.0) for x in (left, right))
    if clip is not None:
        right = right * np.minimum(1.0, clip / np.maximum(norms, np.finfo(float).tiny))[..., None]
        if not good.all():
            right = np.where(good[..., None], right, 0.0)
    return np.swapaxes(left, -1, -2) @ right
