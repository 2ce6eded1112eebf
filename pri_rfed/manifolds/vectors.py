"""What the manifolds of vectors share."""

from __future__ import annotations

import numpy as np

from pri_rfed.manifolds.base import Array


def norm(v: Array) -> Array:
    """The Euclidean norm of v [..., n], shape [...]."""
    return np.sqrt(np.vecdot(v, v))
