"""Manifolds by name, and the point that is the middle of one."""

from __future__ import annotations

import difflib

import numpy as np

from pri_rfed.manifolds import MANIFOLDS
from pri_rfed.manifolds.base import Array, Manifold


def make_manifold(name: str, point_shape: tuple[int, ...]) -> Manifold:
    """The manifold of that name whose points have that shape. Raises ValueError if there is none."""
    known = [key for key in MANIFOLDS if key != "product"]
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
        raise ValueError(f"manifold = {name!r}: unknown; {hint}")
    for size in (point_shape, point_shape[:1], (point_shape[0] - 1,)):
        try:
            manifold: Manifold = MANIFOLDS[name](*size)
        except (TypeError, ValueError):
            continue
        if manifold.point_shape == point_shape:
            return manifold
    raise ValueError(f"manifold = {name!r}: its points do not have the shape {point_shape}")


def origin(manifold: Manifold) -> Array:
    """The point that everybody would call the middle: 0, the first unit vector, or the identity."""
    shape = manifold.point_shape
    candidates = [np.zeros(shape), np.eye(shape[0], shape[1]) if len(shape) == 2 else np.eye(1, shape[0])[0]]
    return next(point for point in candidates if manifold.check_point(point))
