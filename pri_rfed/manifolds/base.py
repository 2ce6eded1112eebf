"""What every manifold offers.

All operations take leading batch axes: a point is an array [..., *point_shape], and `...` broadcasts between the
arguments as in NumPy. Tangent vectors have the shape of points. Everything is float64. Nothing here draws random
numbers from a global state: a generator is passed in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, overload

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class LogError(ValueError):
    """The logarithm has no unique value there (cut locus) or its iteration did not converge.

    `entries` holds the batch indices concerned.
    """

    def __init__(self, manifold: Manifold, entries: list[tuple[int, ...]]):
        self.entries = entries
        shown = ", ".join(map(str, entries[:5])) + (", …" if len(entries) > 5 else "")
        super().__init__(
            f"log on {manifold}: no unique shortest geodesic found for batch entries {shown}; "
            "the points must lie within the injectivity radius of each other"
        )


class Manifold(ABC):
    """A Riemannian manifold with its metric.

    Concrete classes are final and implement the abstract methods below; nothing that is implemented here is overridden,
    except `retract` where the manifold has a retraction cheaper than `exp`, and `log_coordinates` where these come
    before the logarithm.
    """

    name: ClassVar[str]
    """Its key in `MANIFOLDS` and in configurations."""
    transport: str
    """Which isometry `parallel_transport` is, in words: 'parallel' along the geodesic, or another one."""
    homogeneous: bool
    """Whether isometries take every point to every other one (then volumes do not depend on the base point)."""
    complete: bool
    """Whether exp is a geodesic for all tangent vectors, however long."""

    point_shape: tuple[int, ...]
    """Shape of one point and of one tangent vector."""
    normals_shape: tuple[int, ...]
    """Shape of the i.i.d. normal numbers from which `tangent_from_normals` makes one tangent vector."""
    dim: int
    """Intrinsic dimension."""
    curvature_bounds: tuple[float, float]
    """Lower and upper bound of the sectional curvature over the whole manifold (possibly infinite)."""

    # Metric ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def inner(self, w: Array, u: Array, v: Array) -> Array:
        """Riemannian inner product <u, v>_w, shape [...]."""

    def norm(self, w: Array, v: Array) -> Array:
        """Riemannian norm ||v||_w, shape [...]."""
        return np.sqrt(np.maximum(self.inner(w, v, v), 0.0))

    @abstractmethod
    def dist(self, w: Array, x: Array) -> Array:
        """Geodesic distance, shape [...]. Raises nothing: an entry that could not be computed is NaN."""

    @abstractmethod
    def injectivity_radius(self, w: Array) -> Array:
        """Injectivity radius at w (or a proven lower bound; the docstring of the class says which), shape [...]."""

    # Geodesics ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def exp(self, w: Array, v: Array) -> Array:
        """Exponential map: where the geodesic from w with velocity v is at time 1, shape [..., *point_shape]."""

    def retract(self, w: Array, v: Array) -> Array:
        """A retraction: agrees with `exp` to first order, and may be cheaper."""
        return self.exp(w, v)

    def log(self, w: Array, x: Array, *, strict: bool = True) -> Array:
        """The tangent vector v at w of length dist(w, x) with exp(w, v) = x, shape [..., *point_shape].

        Raises LogError when an entry has none that is unique, or was not found; with strict=False such entries are NaN.
        """
        v = self._log(w, x)
        if strict:
            bad = ~np.isfinite(v).all(axis=self._event_axes)
            if np.any(bad):
                raise LogError(self, [tuple(map(int, i)) for i in np.argwhere(bad)])
        return v

    @abstractmethod
    def _log(self, w: Array, x: Array) -> Array:
        """`log` that marks with NaN the entries it has no value for."""

    @abstractmethod
    def parallel_transport(self, w: Array, x: Array, v: Array) -> Array:
        """Carry v from T_w to T_x by a linear isometry (which one: `transport`), shape [..., *point_shape]."""

    # Tangent space --------------------------------------------------------------------------------------------------

    @abstractmethod
    def coordinates(self, w: Array, v: Array) -> Array:
        """Coordinates of v in an orthonormal basis of T_w, shape [..., dim]."""

    def log_coordinates(self, w: Array, x: Array) -> Array:
        """`coordinates` of log(w, x), NaN where it has no value, shape [..., dim]. Their norm is dist(w, x)."""
        return self.coordinates(w, self._log(w, x))

    @abstractmethod
    def from_coordinates(self, w: Array, c: Array) -> Array:
        """The tangent vector with coordinates c [..., dim]: the inverse of `coordinates`."""

    @abstractmethod
    def tangent_from_normals(self, w: Array, a: Array) -> Array:
        """The linear map that takes i.i.d. N(0, sigma^2) numbers a [..., *normals_shape] to a tangent Gaussian
        N_w(0, sigma^2): a vector with i.i.d. N(0, sigma^2) coordinates in any orthonormal basis of T_w.
        """

    @abstractmethod
    def project_tangent(self, w: Array, y: Array) -> Array:
        """The tangent vector nearest to the ambient array y in the ambient inner product; identity on T_w."""

    @abstractmethod
    def riemannian_gradient(self, w: Array, egrad: Array) -> Array:
        """The Riemannian gradient at w of a function whose gradient by the array's entries is `egrad`."""

    # Points ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def project_point(self, y: Array) -> Array:
        """A point near the ambient array y; identity on the manifold. For repairing rounding, not for optimisation."""

    @abstractmethod
    def random_point(self, rng: np.random.Generator, batch: tuple[int, ...] = ()) -> Array:
        """Random points [*batch, *point_shape] (uniform where the manifold is compact; else the docstring says)."""

    @abstractmethod
    def _point_defects(self, x: Array) -> Iterator[tuple[Array, str]]:
        """Pairs (size of a violation relative to its tolerance, shape [...], and what is wrong): fine where <= 1."""

    @abstractmethod
    def _tangent_defects(self, w: Array, v: Array) -> Iterator[tuple[Array, str]]:
        """The same for tangent vectors."""

    def valid_points(self, x: Array) -> NDArray[np.bool_]:
        """Which of the points lie on the manifold, shape [...]."""
        return self._valid(x, "_point_defects", x)

    @overload
    def check_point(self, x: Array, explain: Literal[False] = False) -> bool: ...
    @overload
    def check_point(self, x: Array, explain: Literal[True]) -> tuple[bool, str]: ...
    def check_point(self, x: Array, explain: bool = False) -> bool | tuple[bool, str]:
        """Whether all points lie on the manifold; with explain=True also what is wrong with the first that does not."""
        return self._check(x, explain, "_point_defects", x)

    @overload
    def check_tangent(self, w: Array, v: Array, explain: Literal[False] = False) -> bool: ...
    @overload
    def check_tangent(self, w: Array, v: Array, explain: Literal[True]) -> tuple[bool, str]: ...
    def check_tangent(self, w: Array, v: Array, explain: bool = False) -> bool | tuple[bool, str]:
        """Whether all v are tangent at w; with explain=True also what is wrong with the first that is not."""
        return self._check(v, explain, "_tangent_defects", w, v)

    # Helpers --------------------------------------------------------------------------------------------------------

    @property
    def _event_axes(self) -> tuple[int, ...]:
        return tuple(range(-len(self.point_shape), 0))

    def batch_shape(self, x: Array) -> tuple[int, ...]:
        """The leading axes of an array of points."""
        return np.shape(x)[: np.ndim(x) - len(self.point_shape)]

    def _valid(self, x: Array, defects: str, *args: Any) -> NDArray[np.bool_]:
        dtype = np.asarray(x).dtype
        if np.shape(x)[-len(self.point_shape) :] != self.point_shape or not np.issubdtype(dtype, np.floating):
            raise ValueError(
                f"{self}: an array of points [..., {', '.join(map(str, self.point_shape))}] of floats is needed, "
                f"not shape {np.shape(x)} of {dtype}"
            )
        ok = np.asarray(np.isfinite(x).all(axis=self._event_axes))
        with np.errstate(all="ignore"):
            for violation, _ in getattr(self, defects)(*args):
                ok = ok & (violation <= 1)
        return np.asarray(ok)

    def _check(self, x: Array, explain: bool, defects: str, *args: Any) -> bool | tuple[bool, str]:
        try:
            ok = self._valid(x, defects, *args)
        except ValueError as error:
            return (False, str(error)) if explain else False
        if not explain:
            return bool(np.all(ok))
        if np.all(ok):
            return True, ""
        at = tuple(map(int, np.argwhere(~ok)[0]))
        where = f"entry {at}: " if at else ""
        if not np.isfinite(np.broadcast_to(x, (*ok.shape, *self.point_shape))[at]).all():
            return False, f"{self}: {where}holds NaN or infinite numbers"
        with np.errstate(all="ignore"):
            for violation, text in getattr(self, defects)(*args):
                size = float(np.broadcast_to(violation, ok.shape)[at])
                if not size <= 1:
                    return False, f"{self}: {where}{text} ({size:.3g} times the tolerance)"
        raise AssertionError("unreachable: an entry is wrong without a defect")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(str, self.point_shape))})"
