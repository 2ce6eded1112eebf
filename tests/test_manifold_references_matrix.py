"""The manifolds of matrices against independent implementations: pymanopt, scipy, differential equations, and mpmath at
50 digits for badly conditioned matrices and for points that are very near each other or the cut locus.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath as mp
import numpy as np
import pymanopt.manifolds as pymanopt
import pytest
import scipy.linalg
from cases import close, tangent
from scipy.integrate import solve_ivp

from pri_rfed.manifolds import (
    Array,
    Grassmann,
    LogError,
    Manifold,
    SPDAffineInvariant,
    SPDBuresWasserstein,
    SPDLogEuclidean,
    Sphere,
    Stiefel,
    linalg,
)
from pri_rfed.manifolds.linalg import frobenius, skew, sym, transpose

EPS = np.finfo(float).eps
SPD_CLASSES = [SPDAffineInvariant, SPDLogEuclidean, SPDBuresWasserstein]
FRAME_SIZES = [(3, 2), (6, 2), (5, 4), (9, 3), (30, 6)]


def each(f: Callable[..., Any], *batches: Array) -> Array:
    """f, which knows no batches, applied to every entry."""
    return np.array([f(*entry) for entry in zip(*batches, strict=True)])


@pytest.mark.parametrize("make", [*SPD_CLASSES, lambda m: Stiefel(m, 1), lambda m: Grassmann(5, m)])
@pytest.mark.parametrize("size", [0, -2, 1.5])
def test_sizes_that_make_no_sense_are_refused(make: Callable[[Any], Manifold], size: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        make(size)


# Positive definite matrices at 50 digits ------------------------------------------------------------------------------


def exact(a: Array) -> Any:
    return mp.matrix(a.tolist())


def function_of(a: Any, f: Callable[[Any], Any]) -> Any:
    values, p = mp.eigsy((a + a.T) / 2)
    return p * mp.diag([f(x) for x in values]) * p.T


def in_eigenbasis(a: Any, v: Any, kernel: Callable[[Any, Any], Any]) -> Any:
    """P (kernel(l_i, l_j) ∘ P^T v P) P^T."""
    values, p = mp.eigsy((a + a.T) / 2)
    t = p.T * v * p
    return p * mp.matrix([[kernel(x, y) * t[i, j] for j, y in enumerate(values)] for i, x in enumerate(values)]) * p.T


def trace(a: Any) -> Any:
    return sum(a[i, i] for i in range(a.rows))


class Reference(NamedTuple):
    """The definitions, on mpmath matrices."""

    whiten: Callable[[Any, Any], Any]
    """v at w as a symmetric matrix of the same length."""
    exp: Callable[[Any, Any], Any]
    log: Callable[[Any, Any], Any]
    transport: Callable[[Any, Any, Any], Any]

    def norm(self, w: Any, v: Any) -> Any:
        h = self.whiten(w, v)
        return mp.sqrt(trace(h * h.T))


def ai_roots(w: Any) -> tuple[Any, Any]:
    return function_of(w, mp.sqrt), function_of(w, lambda x: 1 / mp.sqrt(x))


def ai_transport(w: Any, x: Any, v: Any) -> Any:
    root, inverse = ai_roots(w)
    e = root * function_of(inverse * x * inverse, mp.sqrt) * inverse
    return e * v * e.T


def ai_map(f: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def mapped(w: Any, v: Any) -> Any:
        root, inverse = ai_roots(w)
        return root * function_of(inverse * v * inverse, f) * root

    return mapped


def d_log(w: Any, v: Any) -> Any:
    return in_eigenbasis(w, v, lambda x, y: 1 / x if x == y else (mp.log(x) - mp.log(y)) / (x - y))


def d_exp(w: Any, v: Any) -> Any:
    """The differential of exp at log w."""
    return in_eigenbasis(w, v, lambda x, y: x if x == y else (x - y) / (mp.log(x) - mp.log(y)))


def bw_exp(w: Any, v: Any) -> Any:
    step = mp.eye(w.rows) + in_eigenbasis(w, v, lambda x, y: 1 / (x + y))
    return step * w * step


def bw_log(w: Any, x: Any) -> Any:
    root, inverse = ai_roots(w)
    t = inverse * function_of(root * x * root, mp.sqrt) * inverse
    return t * w + w * t - 2 * w


def bw_whiten(w: Any, v: Any) -> Any:
    return in_eigenbasis(w, v, lambda x, y: 1 / mp.sqrt(2 * (x + y)))


def bw_colour(w: Any, h: Any) -> Any:
    return in_eigenbasis(w, h, lambda x, y: mp.sqrt(2 * (x + y)))


REFERENCES: dict[type[Manifold], Reference] = {
    SPDAffineInvariant: Reference(
        lambda w, v: ai_roots(w)[1] * v * ai_roots(w)[1], ai_map(mp.exp), ai_map(mp.log), ai_transport
    ),
    SPDLogEuclidean: Reference(
        d_log,
        lambda w, v: function_of(function_of(w, mp.log) + d_log(w, v), mp.exp),
        lambda w, x: d_exp(w, function_of(x, mp.log) - function_of(w, mp.log)),
        lambda w, x, v: d_exp(x, d_log(w, v)),
    ),
    SPDBuresWasserstein: Reference(bw_whiten, bw_exp, bw_log, lambda w, x, v: bw_colour(x, bw_whiten(w, v))),
}


def spd_matrix(rng: np.random.Generator, m: int, condition: float, kind: str) -> Array:
    """Eigenvalues spread over the condition: on the diagonal, by a bad scaling of the axes, or in all directions."""
    spread = rng.permutation(np.geomspace(1, 1 / condition, m))
    rotation = np.linalg.qr(rng.standard_normal((m, m)))[0]
    if kind == "diagonal":
        return np.diag(spread * rng.uniform(0.5, 1, m))
    if kind == "graded":
        scale = np.sqrt(spread)
        return sym(scale[:, None] * (rotation * np.geomspace(1, 0.2, m)) @ rotation.T * scale)
    return sym((rotation * spread) @ rotation.T)


@pytest.mark.parametrize("spd", SPD_CLASSES)
@pytest.mark.parametrize("kind", ["diagonal", "graded", "dense"])
@pytest.mark.parametrize("condition", [1.0, 1e6, 1e12])
@pytest.mark.parametrize("size", [2, 3])
def test_spd_at_50_digits(spd: type[Manifold], kind: str, condition: float, size: int) -> None:
    """2 x 2 matrices have closed forms of their own."""
    m = spd(size)  # type: ignore[call-arg]
    reference = REFERENCES[spd]
    rng = np.random.default_rng([len(kind), int(np.log10(condition))])
    # Rounding the entries of a dense matrix has moved it by this much, relatively, in its own metric.
    rounded = 4 * EPS * condition
    tolerance = max(1e-9, rounded if kind == "dense" else 0.0)
    with mp.workdps(50):
        w = spd_matrix(rng, size, condition, kind)
        reach = min(1.0, float(m.injectivity_radius(w)))
        others = [
            spd_matrix(rng, size, condition, kind),
            spd_matrix(rng, size, 3.0, "dense"),
            m.exp(w, tangent(m, rng, w, 1e-8 * reach)),
        ]
        v = tangent(m, rng, w, 0.7 * reach)
        w_, v_ = exact(w), exact(v)
        length = reference.norm(w_, v_)
        assert abs(m.norm(w, v) - length) <= tolerance * length
        assert abs(np.linalg.norm(m.coordinates(w, v)) - length) <= tolerance * length

        end = reference.exp(w_, v_)
        off = reference.norm(end, exact(m.exp(w, v)) - end)
        # Only the affine-invariant exp of a graded matrix is graded; the others' ends are rounded as dense ones are.
        assert off <= (tolerance if spd is SPDAffineInvariant else max(tolerance, rounded)) * length

        for x in others:
            x_ = exact(x)
            log = reference.log(w_, x_)
            dist = reference.norm(w_, log)
            assert abs(m.dist(w, x) - dist) <= tolerance * dist
            assert reference.norm(w_, exact(m.log(w, x)) - log) <= tolerance * dist
            carried = reference.transport(w_, x_, v_)
            # A neighbour that came out of exp is a dense matrix: it is not graded, if w is.
            by = max(tolerance, rounded) if x is others[-1] and spd is not SPDAffineInvariant else tolerance
            assert reference.norm(x_, exact(m.parallel_transport(w, x, v)) - carried) <= by * length


@pytest.mark.parametrize("size", [2, 3, 6])
@pytest.mark.parametrize("ratio", [1.0001, 1.5, 30.0, 1e3, 9e3, 1.1e4, 1e7])
def test_affine_invariant_on_both_sides_of_where_formulas_change(size: int, ratio: float) -> None:
    """By the ratio of the eigenvalues of w^-1 x (log: 1e4) and by the length of a step (exp: 1/2)."""
    m = SPDAffineInvariant(size)
    reference = REFERENCES[SPDAffineInvariant]
    rng = np.random.default_rng([size, int(ratio)])
    w = m.random_point(rng)
    lower, q = np.linalg.cholesky(w), np.linalg.qr(rng.standard_normal((size, size)))[0]
    x = sym(lower @ (q * np.geomspace(0.7, 0.7 * ratio, size)) @ q.T @ lower.T)
    with mp.workdps(50):
        w_ = exact(w)
        log = reference.log(w_, exact(x))
        dist = reference.norm(w_, log)
        # As much as rounding the entries of x would change.
        tolerance = 1e-13 + 20 * EPS * ratio
        assert abs(m.dist(w, x) - dist) <= tolerance * dist
        assert reference.norm(w_, exact(m.log(w, x)) - log) <= tolerance * dist
        assert abs(np.linalg.norm(m.log_coordinates(w, x)) - dist) <= tolerance * dist
        for length in (1e-6, 0.49, 0.51, 3.0):
            v = tangent(m, rng, w, length)
            end = reference.exp(w_, exact(v))
            assert reference.norm(end, exact(m.exp(w, v)) - end) <= 1e-14 * np.exp(2 * length)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("condition", [30.0, 9e3, 1.1e4])
@pytest.mark.parametrize("separation", [1e-10, 1e-3, 1.0])
def test_log_euclidean_on_both_sides_of_where_formulas_change(size: int, condition: float, separation: float) -> None:
    m = SPDLogEuclidean(size)
    reference = REFERENCES[SPDLogEuclidean]
    rng = np.random.default_rng([size, int(condition)])
    w = spd_matrix(rng, size, condition, "dense")
    x, v = m.exp(w, tangent(m, rng, w, separation)), tangent(m, rng, w, 1.0)
    # As much as rounding the entries of w would change.
    tolerance = 1e-13 + 20 * EPS * condition
    with mp.workdps(50):
        w_, x_, v_ = exact(w), exact(x), exact(v)
        log = reference.log(w_, x_)
        dist = reference.norm(w_, log)
        assert abs(m.dist(w, x) - dist) <= tolerance * dist
        assert reference.norm(w_, exact(m.log(w, x)) - log) <= tolerance * dist
        assert abs(np.linalg.norm(m.log_coordinates(w, x)) - dist) <= tolerance * dist
        length = reference.norm(w_, v_)
        assert abs(m.norm(w, v) - length) <= tolerance * length
        end = reference.exp(w_, v_)
        assert reference.norm(end, exact(m.exp(w, v)) - end) <= tolerance * length


@pytest.mark.parametrize("spd", SPD_CLASSES)
@pytest.mark.parametrize("separation", [1e-3, 1e-8, 1e-12])
def test_spd_scaled_by_a_number_near_one(spd: type[Manifold], separation: float) -> None:
    m = spd(4)  # type: ignore[call-arg]
    before = np.array([1.0, 1e-4, 1e-8, 1e-12])
    after = before * (1 + separation)
    w, x = np.diag(before), np.diag(after)
    expected = np.linalg.norm(np.log1p((after - before) / before))
    if spd is SPDBuresWasserstein:
        expected = np.linalg.norm((after - before) / (np.sqrt(after) + np.sqrt(before)))
    np.testing.assert_allclose(m.dist(w, x), expected, rtol=1e-12)
    np.testing.assert_allclose(m.norm(w, m.log(w, x)), expected, rtol=1e-12)


# The linear algebra of 2 x 2 matrices, and what is remembered ---------------------------------------------------------


def symmetric_2x2() -> Array:
    """Of all sizes and shapes: diagonal, multiples of the identity, nearly so, zero."""
    rng = np.random.default_rng(8)
    a = sym(rng.standard_normal((40, 2, 2)) * 10.0 ** rng.integers(-8, 9, (40, 1, 1)))
    special = [np.eye(2), np.zeros((2, 2)), np.diag([3.0, -1.0]), np.diag([-1.0, 3.0]), np.eye(2) + 1e-14 * a[0]]
    return np.concatenate([a, np.array(special), -np.abs(a[:3]), [[[0.0, 1.0], [1.0, 0.0]]]])


def test_symmetric_2x2_matrices_as_lapack_has_them() -> None:
    a = symmetric_2x2()
    size = np.maximum(np.abs(a).max(axis=(-2, -1)), 1e-300)
    values, vectors = linalg.eigh(a)
    assert np.all(np.abs(values - np.linalg.eigvalsh(a)) <= 4 * EPS * size[:, None])
    close(transpose(vectors) @ vectors, np.broadcast_to(np.eye(2), a.shape), 1e-15)
    assert np.all(np.abs((vectors * values[..., None, :]) @ transpose(vectors) - a) <= 8 * EPS * size[:, None, None])
    small = a / size[:, None, None]
    close(linalg.function_of(small, np.exp), each(scipy.linalg.expm, small), 1e-14)
    assert np.all(linalg.function_of(a, lambda x: x) == transpose(linalg.function_of(a, lambda x: x)))


@np.errstate(all="ignore")
def test_2x2_factors_as_lapack_has_them() -> None:
    rng = np.random.default_rng(9)
    w = SPDAffineInvariant(2).random_point(rng, (20,))
    close(linalg.cholesky(w), np.linalg.cholesky(w), 1e-14)
    close(linalg.inverse_factor(w) @ linalg.cholesky(w), np.broadcast_to(np.eye(2), w.shape), 1e-13)
    a = rng.standard_normal((20, 2, 2))
    a[np.linalg.det(a) < 0] *= np.array([1.0, -1.0])
    close(linalg.rotation_of(a), each(lambda x: scipy.linalg.polar(x)[0], a), 1e-12)
    bad = np.array([[[1.0, 2.0], [2.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, 1.0]], np.ones((2, 2))])
    assert np.isnan(linalg.cholesky(np.concatenate([bad, w]))[:4]).all()
    np.testing.assert_array_equal(linalg.cholesky(np.concatenate([bad, w]))[4:], linalg.cholesky(w))


@pytest.mark.parametrize("size", [2, 3, 7])
def test_a_matrix_exponential_does_not_depend_on_its_neighbours(size: int) -> None:
    """The series is for short ones only, and each is looked at by itself."""
    rng = np.random.default_rng(10)
    a = sym(rng.standard_normal((12, size, size)))
    a *= (np.geomspace(1e-9, 3, 12) / frobenius(a))[:, None, None]
    together = linalg.exp_symmetric(a)
    for others in (a[:1], a[-1:]):
        mixed = a.copy()
        mixed[::2] = others
        np.testing.assert_array_equal(linalg.exp_symmetric(mixed)[1::2], together[1::2])
    exact_values = each(scipy.linalg.expm, a)
    assert np.all(frobenius(together - exact_values) <= 1e-14 * frobenius(exact_values) * (1 + frobenius(a)))


def test_what_is_remembered_is_of_the_same_content() -> None:
    m = SPDAffineInvariant(3)
    rng = np.random.default_rng(11)
    w, other, h = m.random_point(rng), m.random_point(rng), rng.standard_normal(m.dim)
    first, second = m.from_coordinates(w, h), m.from_coordinates(other, h)
    for point, v in ((w, first), (other, second)):
        lower, half = np.linalg.cholesky(point), np.zeros((3, 3))
        half[np.triu_indices(3)] = h / np.where(np.equal(*np.triu_indices(3)), 2.0, np.sqrt(2))
        close(v, lower @ (half + half.T) @ lower.T, 1e-12)
    again = w.copy()
    np.testing.assert_array_equal(m.from_coordinates(again, h), first)
    again[...] = other  # the array that was met before, with other numbers in it
    np.testing.assert_array_equal(m.from_coordinates(again, h), second)
    np.testing.assert_array_equal(m.from_coordinates(other[None], h), second[None])


# Positive definite matrices, scipy and pymanopt -----------------------------------------------------------------------


def spd_pair(m: Manifold) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(m.dim)
    w, x = m.random_point(rng, (2, 10))
    return w, x, tangent(m, rng, w, 1.0)


@pytest.mark.parametrize("size", [2, 5, 12])
def test_affine_invariant_by_matrix_functions(size: int) -> None:
    m = SPDAffineInvariant(size)
    w, x, v = spd_pair(m)
    w_inv = np.linalg.inv(w)
    close(m.inner(w, v, x), np.trace(w_inv @ v @ w_inv @ x, axis1=-2, axis2=-1))
    close(m.exp(w, v), w @ each(scipy.linalg.expm, w_inv @ v))
    close(m.log(w, x), w @ each(scipy.linalg.logm, w_inv @ x))
    roots = each(lambda a, b: scipy.linalg.eigvalsh(a, b), x, w)
    close(m.dist(w, x), np.linalg.norm(np.log(roots), axis=-1))
    e = each(scipy.linalg.sqrtm, x @ w_inv)
    close(m.parallel_transport(w, x, v), e @ v @ transpose(e))


def test_affine_invariant_transport_solves_its_equation() -> None:
    m = SPDAffineInvariant(3)
    w, x, v = (a[0] for a in spd_pair(m))
    log = m.log(w, x)

    def slope(t: float, flat: Array) -> Array:
        at = w @ scipy.linalg.expm(t * np.linalg.solve(w, log))
        velocity = log @ np.linalg.solve(w, at)
        half = velocity @ np.linalg.solve(at, flat.reshape(3, 3))
        return 0.5 * (half + half.T).ravel()

    end = solve_ivp(slope, (0, 1), v.ravel(), method="DOP853", rtol=1e-12, atol=1e-12).y[:, -1]
    close(m.parallel_transport(w, x, v), end.reshape(3, 3))


@pytest.mark.parametrize("size", [2, 5, 12])
def test_log_euclidean_by_matrix_functions(size: int) -> None:
    m = SPDLogEuclidean(size)
    w, x, _ = spd_pair(m)
    log_w, log_x = each(scipy.linalg.logm, w), each(scipy.linalg.logm, x)
    close(m.dist(w, x), frobenius(log_x - log_w))

    def d_exp(at: Array, h: Array) -> Array:
        return np.asarray(scipy.linalg.expm_frechet(at, h, compute_expm=False))

    close(m.log(w, x), each(d_exp, log_w, log_x - log_w))
    h = tangent(SPDAffineInvariant(size), np.random.default_rng(3), np.broadcast_to(np.eye(size), w.shape), 1.0)
    pushed = each(d_exp, log_w, h)
    close(m.norm(w, pushed), np.ones(10))
    close(m.exp(w, pushed), each(scipy.linalg.expm, log_w + h))
    close(m.parallel_transport(w, x, pushed), each(d_exp, log_x, h))


@pytest.mark.parametrize("size", [2, 5])
def test_bures_wasserstein_by_matrix_functions(size: int) -> None:
    m = SPDBuresWasserstein(size)
    w, x, _ = spd_pair(m)
    v = tangent(m, np.random.default_rng(1), w, 0.5 * m.injectivity_radius(w))
    root = each(scipy.linalg.sqrtm, w)
    cross = each(scipy.linalg.sqrtm, root @ x @ root)
    close(m.dist(w, x) ** 2, np.trace(w + x - 2 * cross, axis1=-2, axis2=-1))
    product = each(scipy.linalg.sqrtm, x @ w)
    close(m.log(w, x), product + transpose(product) - 2 * w)
    operator = each(scipy.linalg.solve_continuous_lyapunov, w, v)
    close(m.inner(w, v, x), 0.5 * np.trace(operator @ x, axis1=-2, axis2=-1))
    step = np.eye(size) + operator
    close(m.exp(w, v), step @ w @ step)
    one = np.eye(size)

    def metric_root(a: Array) -> Array:
        """G^½ on vec(v): G = ½ (1 ⊗ a + a ⊗ 1)^-1."""
        return np.asarray(scipy.linalg.sqrtm(0.5 * np.linalg.inv(np.kron(one, a) + np.kron(a, one))))

    carried = [np.linalg.solve(metric_root(b), metric_root(a) @ u.ravel()) for a, b, u in zip(w, x, v, strict=True)]
    close(m.parallel_transport(w, x, v), np.reshape(carried, v.shape))


def test_bures_wasserstein_beyond_the_injectivity_radius() -> None:
    m = SPDBuresWasserstein(4)
    rng = np.random.default_rng(0)
    w = m.random_point(rng, (10,))
    values, p = np.linalg.eigh(w)
    close(m.injectivity_radius(w), np.sqrt(values[:, 0]))
    # Straight towards the singular matrices: reached at just that distance.
    u = p[:, :, :1]
    inwards = -2 * values[:, :1, None] * u @ transpose(u)
    close(m.norm(w, inwards), m.injectivity_radius(w))
    close(np.linalg.eigvalsh(m.exp(w, 0.999 * inwards))[:, 0], 1e-6 * values[:, 0], 1e-12)
    # Far beyond, exp goes on: a point for every step, however long.
    far = m.exp(w, tangent(m, rng, w, 100.0))
    assert m.check_point(far, explain=True) == (True, "")
    assert np.all(m.dist(w, far) < 100.0)


@pytest.mark.parametrize("eigenvalues", [(1.0, 1.0), (1.0, 4.0), (0.3, 1.1, 5.0)])
def test_bures_wasserstein_curvature_bound_is_attained(eigenvalues: tuple[float, ...]) -> None:
    """By thin triangles in the plane of the largest curvature at a diagonal matrix."""
    m = SPDBuresWasserstein(len(eigenvalues))
    w = np.diag(eigenvalues)
    a, b = eigenvalues[:2]
    u, v = np.zeros((2, *w.shape))
    u[0, 1] = u[1, 0] = 1
    v[0, 0], v[1, 1] = 1, -1
    u, v = u / m.norm(w, u), v / m.norm(w, v)
    assert abs(m.inner(w, u, v)) < 1e-12
    h = 0.02 * np.sqrt(a)
    side = m.dist(m.exp(w, h * u), m.exp(w, h * v)) ** 2
    curvature = 3 * (2 * h**2 - side) / h**4
    assert curvature == pytest.approx(3 / (a + b), rel=0.01)
    assert curvature <= 1.01 * m.curvature_bound_on(a)
    with pytest.raises(ValueError, match="eigenvalue_floor=0"):
        m.curvature_bound_on(0)


@pytest.mark.parametrize("size", [2, 6])
def test_affine_invariant_agrees_with_pymanopt(size: int) -> None:
    m, other = SPDAffineInvariant(size), pymanopt.SymmetricPositiveDefinite(size)
    w, x, v = spd_pair(m)
    close(m.dist(w, x), each(other.dist, w, x))
    close(m.exp(w, v), each(other.exp, w, v))
    close(m.log(w, x), each(other.log, w, x))
    close(m.inner(w, v, x), each(other.inner_product, w, v, x))
    close(m.retract(w, v), each(other.retraction, w, v))
    close(m.riemannian_gradient(w, v), each(other.euclidean_to_riemannian_gradient, w, v))


@pytest.mark.parametrize("spd", SPD_CLASSES)
def test_a_matrix_that_is_not_positive_definite_spoils_only_its_entry(spd: type[Manifold]) -> None:
    m = spd(3)  # type: ignore[call-arg]
    rng = np.random.default_rng(2)
    w, x = m.random_point(rng, (2, 4))
    v = tangent(m, rng, w, 0.1)
    bad = w.copy()
    bad[2] = np.diag([1.0, -1.0, 2.0])
    for method, arguments in (
        ("exp", (v,)),
        ("dist", (x,)),
        ("parallel_transport", (x, v)),
        ("tangent_from_normals", (rng.standard_normal((4, *m.normals_shape)),)),
    ):
        spoilt, fine = getattr(m, method)(bad, *arguments), getattr(m, method)(w, *arguments)
        assert np.isnan(spoilt[2]).all(), method
        np.testing.assert_array_equal(np.delete(spoilt, 2, 0), np.delete(fine, 2, 0), err_msg=method)
    with pytest.raises(LogError, match=r"entries \(2,\);"):
        m.log(bad, x)
    assert m.check_point(m.project_point(bad))


@pytest.mark.parametrize("spd", SPD_CLASSES)
def test_a_step_too_long_for_floating_point_spoils_only_its_entry(spd: type[Manifold]) -> None:
    m = spd(3)  # type: ignore[call-arg]
    rng = np.random.default_rng(5)
    w = m.random_point(rng, (3,))
    v = tangent(m, rng, w, 0.1)
    x = m.exp(w, v * np.array([1, 1e200, 1])[:, None, None])
    assert m.valid_points(x).tolist() == [True, False, True]
    close(m.dist(w, x)[[0, 2]], [0.1, 0.1])
    assert np.isnan(m.log(w, x, strict=False)[1]).all()


# Stiefel --------------------------------------------------------------------------------------------------------------


def frames(m: Manifold, n: int = 10) -> tuple[Array, Array, np.random.Generator]:
    rng = np.random.default_rng([m.dim, *m.point_shape])
    return *m.random_point(rng, (2, n)), rng


@pytest.mark.parametrize(("rows", "columns"), FRAME_SIZES)
def test_stiefel_agrees_with_pymanopt(rows: int, columns: int) -> None:
    m, other = Stiefel(rows, columns), pymanopt.Stiefel(rows, columns)
    w, y, rng = frames(m)
    v = tangent(m, rng, w, rng.uniform(0, 5, 10))
    close(m.exp(w, v), each(other.exp, w, v))
    close(m.inner(w, v, y), each(other.inner_product, w, v, y))
    close(m.project_tangent(w, y), each(other.projection, w, y))
    close(m.retract(w, v), each(other.retraction, w, v))
    close(m.project_point(w + v), each(pymanopt.Stiefel(rows, columns, retraction="polar").retraction, w, v))


def test_stiefel_exp_solves_the_geodesic_equation() -> None:
    m = Stiefel(5, 3)
    w, _, rng = frames(m, 1)
    w, v = w[0], tangent(m, rng, w, 2.5)[0]

    def slope(t: float, state: Array) -> Array:
        at, velocity = state.reshape(2, 5, 3)
        return np.concatenate([velocity, -at @ velocity.T @ velocity]).ravel()

    end = solve_ivp(slope, (0, 1), np.concatenate([w, v]).ravel(), method="DOP853", rtol=1e-12, atol=1e-12).y[:, -1]
    close(m.exp(w, v), end.reshape(2, 5, 3)[0])


def test_stiefel_exp_at_50_digits() -> None:
    m = Stiefel(4, 2)
    w, _, rng = frames(m, 1)
    w = w[0]
    for length in (1e-9, 1.0, 30.0):
        v = tangent(m, rng, w, length)
        with mp.workdps(50):
            # Edelman, Arias & Smith (1998): [w v] exp([[A, -S], [1, A]]) [1; 0] exp(-A), A = w^T v, S = v^T v.
            w_, v_ = exact(w), exact(v)
            a, s = w_.T * v_, v_.T * v_
            block = mp.zeros(4)
            block[:2, :2], block[:2, 2:], block[2:, :2], block[2:, 2:] = a, -s, mp.eye(2), a
            moved = mp.expm(block)[:, :2] * mp.expm(-a)
            end = w_ * moved[:2, :] + v_ * moved[2:, :]
            off = exact(m.exp(w, v)) - end
            assert mp.norm(off) <= 1e-15 * max(4, length)


def chord_shortened(w: Array, x: Array, pieces: int, sweeps: int) -> Array:
    """The length of a polygon from w to x with corners on Stiefel, shortened: every corner in turn becomes the frame
    nearest to the mean of its neighbours. Knows nothing of geodesics.
    """
    m = Stiefel(*w.shape[-2:])
    times = np.linspace(0, 1, pieces + 1)[:, None, None, None]
    path = m.project_point((1 - times) * w + times * x)
    path[0], path[-1] = w, x
    for _ in range(sweeps):
        for first in (1, 2):
            path[first:pieces:2] = m.project_point(path[first - 1 : pieces - 1 : 2] + path[first + 1 :: 2])
    return frobenius(np.diff(path, axis=0)).sum(axis=0)


@pytest.mark.parametrize(("rows", "columns"), [(3, 2), (5, 2), (4, 3), (8, 3)])
def test_stiefel_log_is_the_shortest_curve(rows: int, columns: int) -> None:
    m = Stiefel(rows, columns)
    w, _, rng = frames(m, 20)
    x = m.exp(w, tangent(m, rng, w, rng.uniform(0.5, 2.5, 20)))
    np.testing.assert_allclose(m.dist(w, x), chord_shortened(w, x, 24, 400), rtol=2e-3)


def stiefel_directions(m: Stiefel, w: Array, rng: np.random.Generator) -> dict[str, Array]:
    """Directions of all kinds, also the rare ones in which geodesics close or meet again soonest."""
    n = len(w)
    ambient = rng.standard_normal((n, m.m, m.r))
    one_plane = rng.standard_normal((n, m.m, 1)) @ rng.standard_normal((n, 1, m.r))
    return {
        "any": m.project_tangent(w, ambient),
        "one plane": m.project_tangent(w, one_plane),
        "one plane, horizontal": one_plane - w @ (transpose(w) @ one_plane),
        "within the span": w @ skew(rng.standard_normal((n, m.r, m.r))),
        "nearly within the span": m.project_tangent(w, ambient + 5 * w @ rng.standard_normal((n, m.r, m.r))),
    }


@pytest.mark.parametrize(("rows", "columns"), [(2, 1), (5, 1), (3, 2), (4, 2), (4, 3), (9, 4), (60, 10)])
@pytest.mark.parametrize("length", [1e-8, 1.0, 2.5, 3.0, 3.14])
def test_stiefel_log_inverts_exp_within_the_injectivity_radius(rows: int, columns: int, length: float) -> None:
    m = Stiefel(rows, columns)
    w, _, rng = frames(m, 10 if rows == 60 else 200)
    for kind, v in stiefel_directions(m, w, rng).items():
        if columns == 1 and kind == "within the span":
            continue
        v = m.project_tangent(w, v * (length / m.norm(w, v))[:, None, None])
        x = m.exp(w, v)
        # The end is rounded, and near the cut locus a rounding moves the logarithm by 1/(pi - length) of it.
        close(m.log(w, x) / length, v / length, max(1e-9, 30 * EPS / length, 1e-11 / (np.pi - length)))


def test_stiefel_refuses_what_lies_beyond_the_injectivity_radius() -> None:
    w = np.eye(4, 2)
    for x in (w * [1, -1], -w, w[:, ::-1] * [1, 1]):
        with pytest.raises(LogError, match="no unique shortest geodesic"):
            Stiefel(4, 2).log(w, x)
        assert np.isnan(Stiefel(4, 2).dist(w, x))
    m = Stiefel(40, 10)
    w, x, rng = frames(m, 5)
    assert np.isnan(m.dist(w, x)).all()  # random frames are that far apart
    near = m.exp(w, tangent(m, rng, w, 2.0))
    mixed = np.where((np.arange(5) % 2 == 0)[:, None, None], near, x)
    with pytest.raises(LogError, match=r"entries \(1,\), \(3,\);"):
        m.log(w, mixed)
    close(m.dist(w, mixed)[::2], np.full(3, 2.0))
    # A vector longer than pi is no logarithm: the result is another, shorter one, or none.
    m = Stiefel(5, 2)
    w, _, rng = frames(m, 200)
    assert not np.any(m.dist(w, m.exp(w, tangent(m, rng, w, 4.0))) >= np.pi)


@pytest.mark.parametrize(("rows", "columns"), FRAME_SIZES)
def test_stiefel_transport_is_an_orthogonal_matrix(rows: int, columns: int) -> None:
    m = Stiefel(rows, columns)
    w, _, rng = frames(m)
    x = m.exp(w, tangent(m, rng, w, 3.0))
    u, v = (tangent(m, rng, w, 1.0) for _ in range(2))
    u_, v_ = m.parallel_transport(w, x, u), m.parallel_transport(w, x, v)
    close(transpose(u_) @ v_, transpose(u) @ v, 1e-11)
    close(transpose(x) @ v_, transpose(w) @ v, 1e-11)
    # Equivariant under rotations of R^m on the left and within the span on the right.
    left, right = (np.linalg.qr(rng.standard_normal((n, n)))[0] for n in (rows, columns))
    close(m.parallel_transport(left @ w @ right, left @ x @ right, left @ v @ right), left @ v_ @ right, 1e-11)


def test_one_column_is_the_sphere() -> None:
    m, sphere = Stiefel(5, 1), Sphere(5)
    w, x, rng = frames(m, 20)
    v = tangent(m, rng, w, 2.0)
    one, other, step = w[..., 0], x[..., 0], v[..., 0]
    close(m.exp(w, v)[..., 0], sphere.exp(one, step), 1e-13)
    close(m.log(w, x)[..., 0], sphere.log(one, other), 1e-11)
    close(m.parallel_transport(w, x, v)[..., 0], sphere.parallel_transport(one, other, step), 1e-12)


# Grassmann ------------------------------------------------------------------------------------------------------------


def projector(x: Array) -> Array:
    return x @ transpose(x)


@pytest.mark.parametrize(("rows", "columns"), FRAME_SIZES)
def test_grassmann_agrees_with_pymanopt_and_scipy(rows: int, columns: int) -> None:
    m, other = Grassmann(rows, columns), pymanopt.Grassmann(rows, columns)
    w, x, rng = frames(m)
    v = tangent(m, rng, w, rng.uniform(0, 5, 10))
    close(projector(m.exp(w, v)), projector(each(other.exp, w, v)))
    close(m.dist(w, x), each(other.dist, w, x), 1e-8)
    close(m.dist(w, x), np.linalg.norm(each(scipy.linalg.subspace_angles, w, x), axis=-1), 1e-12)
    close(m.log(w, x), each(other.log, w, x))
    close(m.project_tangent(w, x), each(other.projection, w, x))
    close(projector(m.retract(w, v)), projector(each(other.retraction, w, v)))


@pytest.mark.parametrize(("rows", "columns"), [(3, 2), (9, 3)])
def test_grassmann_transport_solves_its_equation(rows: int, columns: int) -> None:
    m = Grassmann(rows, columns)
    w, x, rng = frames(m, 1)
    w, x, v = w[0], x[0], tangent(m, rng, w, 1.0)[0]
    u, s, vt = np.linalg.svd(m.log(w, x), full_matrices=False)

    def slope(t: float, flat: Array) -> Array:
        at = (w @ vt.T * np.cos(t * s) + u * np.sin(t * s)) @ vt
        velocity = (u * s * np.cos(t * s) - w @ vt.T * s * np.sin(t * s)) @ vt
        return -(at @ velocity.T @ flat.reshape(rows, columns)).ravel()

    end = solve_ivp(slope, (0, 1), v.ravel(), method="DOP853", rtol=1e-12, atol=1e-12).y[:, -1].reshape(rows, columns)
    basis = m.exp(w, m.log(w, x))
    close(m.parallel_transport(w, basis, v), end)
    close(m.parallel_transport(w, x, v), end @ basis.T @ x)


@pytest.mark.parametrize(("rows", "columns"), FRAME_SIZES)
def test_grassmann_does_not_depend_on_the_basis(rows: int, columns: int) -> None:
    m = Grassmann(rows, columns)
    w, x, rng = frames(m)
    v = tangent(m, rng, w, 1.0)
    p, q = np.linalg.qr(rng.standard_normal((2, 10, columns, columns)))[0]
    close(m.dist(w @ p, x @ q), m.dist(w, x), 1e-12)
    close(m.log(w @ p, x @ q), m.log(w, x) @ p, 1e-11)
    close(projector(m.exp(w @ p, v @ p)), projector(m.exp(w, v)), 1e-12)
    close(m.parallel_transport(w @ p, x @ q, v @ p), m.parallel_transport(w, x, v) @ q, 1e-11)
    close(m.dist(w, w @ p), np.zeros(10), 1e-14)


@pytest.mark.parametrize("gap", [1e-3, 1e-7, 1e-12])
def test_grassmann_near_the_cut_locus(gap: float) -> None:
    m = Grassmann(7, 3)
    w, _, rng = frames(m)
    basis = np.linalg.qr(np.concatenate([w, rng.standard_normal((10, 7, 3))], axis=-1))[0][..., 3:]
    rotation = np.linalg.qr(rng.standard_normal((10, 3, 3)))[0]
    angles = np.array([np.pi / 2 - gap, 1.0, 1e-3])
    v = basis * angles @ rotation
    x = m.exp(w, v)
    close(m.dist(w, x), np.full(10, np.linalg.norm(angles)), 1e-14)
    close(m.log(w, x), v, 3e-15 / gap)
    close(m.norm(w, m.log(w, x)), np.full(10, np.linalg.norm(angles)), 1e-13)
    u = tangent(m, rng, w, 1.0)
    close(m.norm(x, m.parallel_transport(w, x, u)), np.ones(10), 1e-13)
    # Beyond, the shortest way is another one.
    beyond = m.exp(w, basis * [np.pi / 2 + gap, 1.0, 1e-3] @ rotation)
    close(m.dist(w, beyond), np.full(10, np.linalg.norm(angles)), 1e-14)


def test_grassmann_on_the_cut_locus() -> None:
    m = Grassmann(4, 2)
    w, x = np.eye(4, 2), np.eye(4)[:, [0, 2]]
    assert m.dist(w, x) == pytest.approx(np.pi / 2, rel=1e-15)
    with pytest.raises(LogError):
        m.log(w, x)
    v = tangent(m, np.random.default_rng(0), w, 1.0)
    assert m.check_tangent(x, m.parallel_transport(w, x, v))
    assert m.norm(x, m.parallel_transport(w, x, v)) == pytest.approx(1.0)


@pytest.mark.parametrize("separation", [1e-4, 1e-8, 1e-12])
def test_grassmann_neighbours_at_50_digits(separation: float) -> None:
    m = Grassmann(5, 2)
    w, _, rng = frames(m, 1)
    w = w[0]
    x = m.exp(w, tangent(m, rng, w, separation))
    with mp.workdps(50):
        w_, x_ = (mp.qr(exact(a), mode="skinny")[0] for a in (w, x))
        sines = mp.svd_r(x_ - w_ * (w_.T * x_), compute_uv=False)
        expected = mp.sqrt(sum(mp.asin(s) ** 2 for s in sines))
        assert abs(m.dist(w, x) - expected) <= 1e-12 * expected + 1e-31
        assert abs(m.norm(w, m.log(w, x)) - expected) <= 1e-12 * expected + 1e-31


# Coordinates of frames ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("manifold", [Stiefel, Grassmann])
def test_coordinates_where_the_first_rows_are_singular(manifold: type[Stiefel] | type[Grassmann]) -> None:
    m = manifold(6, 3)
    rng = np.random.default_rng(4)
    for rows in ([3, 4, 5], [0, 3, 4], [2, 1, 0], [0, 1, 2]):
        for sign in (1, -1):
            w = sign * np.eye(6)[:, rows]
            for tilt in (0.0, 1e-300, 1e-15, 1e-8):
                x = m.project_point(w + tilt * rng.standard_normal((6, 3)))
                frame = m.from_coordinates(x, np.eye(m.dim))
                assert m.check_tangent(x, frame)
                close(m.coordinates(x, frame), np.eye(m.dim), 1e-13)
                close(m.inner(x, frame[:, None], frame), np.eye(m.dim), 1e-13)
