"""Agreement with independent implementations: mpmath at 50 digits, pymanopt, and geomstats (answers kept in a file).

The manifolds of vectors; for those of matrices see test_manifold_references_matrix.py. The answers of geomstats cover
both.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import pymanopt.manifolds
import pytest
from cases import tangent
from mpmath import acosh, cos, cosh, fsum, mp, mpf, sin, sinh, sqrt, tanh

from pri_rfed.manifolds import MANIFOLDS, Array, Euclidean, Hyperboloid, Manifold, PoincareBall, Product, Sphere

EPS = np.finfo(float).eps
GEOMSTATS = json.loads(Path(__file__).with_name("references").joinpath("geomstats.json").read_text())["cases"]

# mpmath ---------------------------------------------------------------------------------------------------------------

Vector = list[Any]


@pytest.fixture(autouse=True)
def digits() -> Any:
    with mp.workdps(50):
        yield


def dot(u: Vector, v: Vector) -> Any:
    return fsum(a * b for a, b in zip(u, v, strict=True))


def combine(a: Any, u: Vector, b: Any, v: Vector) -> Vector:
    return [a * x + b * y for x, y in zip(u, v, strict=True)]


class Textbook(ABC):
    """The formulas as they are printed, for exact points. `point` and `tangent` read arrays: what the rounding of their
    entries broke (norm 1, orthogonality) is put right."""

    @abstractmethod
    def point(self, w: Array) -> Vector: ...
    @abstractmethod
    def tangent(self, w: Vector, v: Array) -> Vector: ...
    @abstractmethod
    def inner(self, w: Vector, u: Vector, v: Vector) -> Any: ...
    @abstractmethod
    def dist(self, w: Vector, x: Vector) -> Any: ...
    @abstractmethod
    def exp(self, w: Vector, v: Vector) -> Vector: ...
    @abstractmethod
    def log(self, w: Vector, x: Vector) -> Vector: ...

    def transport(self, w: Vector, x: Vector, v: Vector) -> Vector:
        """Along geodesics of a space of constant curvature embedded with its metric."""
        there, back = self.log(w, x), self.log(x, w)
        return combine(1, v, -self.inner(w, there, v) / self.dist(w, x) ** 2, combine(1, there, 1, back))


class TextbookSphere(Textbook):
    def point(self, w: Array) -> Vector:
        y = [mpf(float(a)) for a in w]
        return [a / sqrt(dot(y, y)) for a in y]

    def tangent(self, w: Vector, v: Array) -> Vector:
        y = [mpf(float(a)) for a in v]
        return combine(1, y, -dot(w, y), w)

    def inner(self, w: Vector, u: Vector, v: Vector) -> Any:
        return dot(u, v)

    def dist(self, w: Vector, x: Vector) -> Any:
        return mp.acos(dot(w, x))

    def exp(self, w: Vector, v: Vector) -> Vector:
        t = sqrt(dot(v, v))
        return combine(cos(t), w, sin(t) / t, v)

    def log(self, w: Vector, x: Vector) -> Vector:
        c = dot(w, x)
        return combine(mp.acos(c) / sqrt(1 - c**2), x, -c * mp.acos(c) / sqrt(1 - c**2), w)


class TextbookHyperboloid(Textbook):
    @staticmethod
    def lorentz(u: Vector, v: Vector) -> Any:
        return dot(u[1:], v[1:]) - u[0] * v[0]

    def point(self, w: Array) -> Vector:
        y = [mpf(float(a)) for a in w[1:]]
        return [sqrt(1 + dot(y, y)), *y]

    def tangent(self, w: Vector, v: Array) -> Vector:
        y = [mpf(float(a)) for a in v[1:]]
        return [dot(w[1:], y) / w[0], *y]

    def inner(self, w: Vector, u: Vector, v: Vector) -> Any:
        return self.lorentz(u, v)

    def dist(self, w: Vector, x: Vector) -> Any:
        return acosh(-self.lorentz(w, x))

    def exp(self, w: Vector, v: Vector) -> Vector:
        t = sqrt(self.lorentz(v, v))
        return combine(cosh(t), w, sinh(t) / t, v)

    def log(self, w: Vector, x: Vector) -> Vector:
        c = -self.lorentz(w, x)
        return combine(acosh(c) / sqrt(c**2 - 1), x, -c * acosh(c) / sqrt(c**2 - 1), w)


class TextbookPoincareBall(Textbook):
    """Möbius addition; transport by way of the hyperboloid."""

    sheet = TextbookHyperboloid()

    @staticmethod
    def factor(w: Vector) -> Any:
        return 2 / (1 - dot(w, w))

    @staticmethod
    def add(x: Vector, y: Vector) -> Vector:
        xy, xx, yy = dot(x, y), dot(x, x), dot(y, y)
        return combine((1 + 2 * xy + yy) / (1 + 2 * xy + xx * yy), x, (1 - xx) / (1 + 2 * xy + xx * yy), y)

    def point(self, w: Array) -> Vector:
        return [mpf(float(a)) for a in w]

    def tangent(self, w: Vector, v: Array) -> Vector:
        return [mpf(float(a)) for a in v]

    def inner(self, w: Vector, u: Vector, v: Vector) -> Any:
        return self.factor(w) ** 2 * dot(u, v)

    def dist(self, w: Vector, x: Vector) -> Any:
        d = combine(1, x, -1, w)
        return acosh(1 + 2 * dot(d, d) / ((1 - dot(w, w)) * (1 - dot(x, x))))

    def exp(self, w: Vector, v: Vector) -> Vector:
        n = sqrt(dot(v, v))
        return self.add(w, [tanh(self.factor(w) * n / 2) / n * a for a in v])

    def log(self, w: Vector, x: Vector) -> Vector:
        z = self.add([-a for a in w], x)
        n = sqrt(dot(z, z))
        return [2 / self.factor(w) * mp.atanh(n) / n * a for a in z]

    def lift(self, w: Vector) -> Vector:
        return [self.factor(w) - 1, *(self.factor(w) * a for a in w)]

    def transport(self, w: Vector, x: Vector, v: Vector) -> Vector:
        f = self.factor(w)
        first = f**2 * dot(w, v)
        lifted = [first, *combine(f, v, first, w)]
        carried = self.sheet.transport(self.lift(w), self.lift(x), lifted)
        return [(a - b * carried[0]) / self.factor(x) for a, b in zip(carried[1:], x, strict=True)]


TEXTBOOKS: list[tuple[Manifold, Textbook, float]] = [
    (Sphere(2), TextbookSphere(), 0.0),
    (Sphere(3), TextbookSphere(), 0.0),
    (Sphere(20), TextbookSphere(), 0.0),
    (Hyperboloid(1), TextbookHyperboloid(), 1.0),
    (Hyperboloid(3), TextbookHyperboloid(), 1e-6),
    (Hyperboloid(3), TextbookHyperboloid(), 1.0),
    (Hyperboloid(3), TextbookHyperboloid(), 15.0),
    (Hyperboloid(20), TextbookHyperboloid(), 2.0),
    (PoincareBall(1), TextbookPoincareBall(), 1.0),
    (PoincareBall(3), TextbookPoincareBall(), 1e-6),
    (PoincareBall(3), TextbookPoincareBall(), 1.0),
    (PoincareBall(3), TextbookPoincareBall(), 10.0),
    (PoincareBall(20), TextbookPoincareBall(), 2.0),
]
"""Manifold, its formulas, and how far from the centre of hyperbolic space the base point lies."""

DISTANCES = [1e-12, 1e-9, 1e-6, 1e-3, 1.0, 2.5, np.pi - 1e-3, np.pi - 1e-7, np.pi - 1e-10]


@pytest.mark.parametrize(
    ("m", "book", "radius"), [pytest.param(*entry, id=f"{entry[0]}-{entry[2]:g}") for entry in TEXTBOOKS]
)
@pytest.mark.parametrize("distance", DISTANCES)
def test_agrees_with_fifty_digits(m: Manifold, book: Textbook, radius: float, distance: float) -> None:
    rng = np.random.default_rng([m.dim, round(radius), round(-np.log(distance) * 10) + 1000])
    w = m.random_point(rng)
    if radius:
        centre = m.project_point(np.zeros(m.point_shape))
        w = m.exp(centre, tangent(m, rng, centre, radius))
    v, u = tangent(m, rng, w, distance), tangent(m, rng, w, 1.0)
    x = m.exp(w, v)
    exact_w, exact_x = book.point(w), book.point(x)
    exact_v, exact_u = book.tangent(exact_w, v), book.tangent(exact_w, u)

    # Everything below is relative. What an array can hold limits it: far from the centre of hyperbolic space the
    # entries of a unit vector are of size e^radius; next to the antipode on the sphere the rounding of |w| turns the
    # geodesic.
    tolerance = 1e-9 + 10 * EPS * np.exp(radius)
    if isinstance(m, Sphere):
        tolerance += 10 * EPS / (np.pi - distance) + (EPS / distance) ** 2

    def size(at: Vector, exact: Vector) -> float:
        return float(sqrt(book.inner(at, exact, exact)))

    def agree(at: Vector, mine: Array, exact: Vector) -> None:
        """As tangent vectors: the difference is measured in the Riemannian norm."""
        difference = combine(1, book.tangent(at, mine), -1, exact)
        assert size(at, difference) <= tolerance * size(at, exact)

    assert float(m.dist(w, x)) == pytest.approx(float(book.dist(exact_w, exact_x)), rel=tolerance)
    assert float(m.inner(w, u, v)) == pytest.approx(
        float(book.inner(exact_w, exact_u, exact_v)), abs=tolerance * distance
    )
    agree(exact_w, m.log(w, x), book.log(exact_w, exact_x))
    agree(exact_x, m.log(x, w), book.log(exact_x, exact_w))
    agree(exact_x, m.parallel_transport(w, x, u), book.transport(exact_w, exact_x, exact_u))
    # exp: the point reached is off by no more than the tolerance, or by the rounding of the array.
    reached = book.exp(exact_w, exact_v)
    largest = max(abs(float(a)) for a in reached)
    np.testing.assert_allclose(x, np.array([float(a) for a in reached]), rtol=0, atol=tolerance * largest)


@pytest.mark.parametrize("gap", [1e-3, 1e-8, 1e-12])
def test_poincare_ball_next_to_its_boundary(gap: float) -> None:
    m, book = PoincareBall(3), TextbookPoincareBall()
    direction = np.array([0.6, 0.0, -0.8])
    w, x = (1 - gap) * direction, np.array([0.1, 0.2, 0.3])
    lost = 1e-9 + 10 * EPS / gap
    assert float(m.dist(x, w)) == pytest.approx(float(book.dist(book.point(x), book.point(w))), rel=lost)
    v = m.log(x, w)
    np.testing.assert_allclose(v, np.array(book.log(book.point(x), book.point(w)), dtype=float), rtol=lost)
    back = m.log(w, x)
    np.testing.assert_allclose(
        back, np.array(book.log(book.point(w), book.point(x)), dtype=float), rtol=lost, atol=lost * gap
    )


# pymanopt -------------------------------------------------------------------------------------------------------------

PYMANOPT = [
    (Euclidean(3), pymanopt.manifolds.Euclidean(3)),
    (Euclidean(2, 4), pymanopt.manifolds.Euclidean(2, 4)),
    (Sphere(3), pymanopt.manifolds.Sphere(3)),
    (Sphere(10), pymanopt.manifolds.Sphere(10)),
    (PoincareBall(2), pymanopt.manifolds.PoincareBall(2)),
    (PoincareBall(5), pymanopt.manifolds.PoincareBall(5)),
]


@pytest.mark.parametrize(("m", "theirs"), PYMANOPT, ids=str)
def test_agrees_with_pymanopt(m: Manifold, theirs: Any) -> None:
    rng = np.random.default_rng(m.dim)
    assert m.dim == theirs.dim
    for _ in range(10):
        w, x = m.random_point(rng), m.random_point(rng)
        u, v = (tangent(m, rng, w, length) for length in (1.0, 0.7))
        y = rng.standard_normal(m.point_shape)
        for mine, other in (
            (m.inner(w, u, v), theirs.inner_product(w, u, v)),
            (m.norm(w, u), theirs.norm(w, u)),
            (m.dist(w, x), theirs.dist(w, x)),
            (m.exp(w, v), theirs.exp(w, v)),
            (m.log(w, x), theirs.log(w, x)),
            (m.project_tangent(w, y), theirs.projection(w, y)),
            (m.riemannian_gradient(w, y), theirs.euclidean_to_riemannian_gradient(w, y)),
        ):
            np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-9)


def test_product_agrees_with_pymanopt() -> None:
    m = Product([mine for mine, _ in PYMANOPT])
    theirs = pymanopt.manifolds.Product([other for _, other in PYMANOPT])
    rng = np.random.default_rng(0)
    w, x = m.random_point(rng), m.random_point(rng)
    u, v = (tangent(m, rng, w, length) for length in (1.0, 2.0))
    ws, xs, us, vs = map(m.split, (w, x, u, v))
    assert m.dim == theirs.dim
    np.testing.assert_allclose(m.inner(w, u, v), theirs.inner_product(ws, us, vs), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(m.dist(w, x), theirs.dist(ws, xs), rtol=1e-9)
    np.testing.assert_allclose(m.exp(w, v), m.join(theirs.exp(ws, vs)), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(m.log(w, x), m.join(theirs.log(ws, xs)), rtol=1e-9, atol=1e-9)


# geomstats ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GEOMSTATS, ids=lambda case: f"{case['manifold']}-{case['arguments']}")
def test_agrees_with_geomstats(case: dict[str, Any]) -> None:
    """Points are compared by distance, because on Grassmann many bases are the same point."""
    m = MANIFOLDS[case["manifold"]](*case["arguments"])
    w, x, u, v = (np.array(case[key]) for key in "wxuv")
    assert m.check_point(np.stack([w, x])) and m.check_tangent(w, np.stack([u, v]))
    assert float(m.dist(m.exp(w, v), np.array(case["exp"]))) <= 1e-9
    for mine, key in ((m.inner(w, u, v), "inner"), (m.dist(w, x), "dist"), (m.log(w, x), "log")):
        np.testing.assert_allclose(mine, case[key], rtol=1e-9, atol=1e-9)
    if "parallel_transport" in case:
        np.testing.assert_allclose(m.parallel_transport(w, x, u), case["parallel_transport"], rtol=1e-9, atol=1e-9)
