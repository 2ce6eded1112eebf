"""What the manifolds of vectors share."""

from __future__ import annotations

import numpy as np

from pri_rfed.manifolds.base import Array


def norm(v: Array) -> Array:
    """The Euclidean norm of v [..., n], shape [...]."""
    return np.sqrt(np.vecdot(v, v))


def gyration(x: Array, w: Array, v: Array) -> Array:
    """gyr[x, -w] v for points x, w [..., d] of the unit ball: the rotation that parallel transport from w to x is, when
    the tangent spaces are identified by transport to and from the centre.

    It is made of the reflections in x/|x| - |x| w and in x/|x|, hence orthogonal whatever the rounding.
    """
    r = norm(x)[..., None]
    direction = np.where(r > 0, x / np.where(r > 0, r, 1), np.eye(1, x.shape[-1])[0])
    between = (1 - r**2) * direction + r * (x - w)
    return _reflect(direction, _reflect(between, v))


def _reflect(s: Array, v: Array) -> Array:
    """The reflection of v in the hyperplane orthogonal to s."""
    return v - (2 * np.vecdot(s, v) / np.vecdot(s, s))[..., None] * s
