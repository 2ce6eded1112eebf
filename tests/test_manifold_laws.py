"""The laws that every registered manifold obeys, in several sizes, and what is particular to the vector manifolds.

A new manifold needs a line in `MANIFOLDS` and one in `EXAMPLES`; everything up to the last section then runs on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from cases import close, tangent
from scipy import stats

from pri_rfed.manifolds import (
    MANIFOLDS,
    Array,
    Euclidean,
    Grassmann,
    Hyperboloid,
    LogError,
    Manifold,
    PoincareBall,
    Product,
    SPDAffineInvariant,
    SPDBuresWasserstein,
    SPDLogEuclidean,
    Sphere,
    Stiefel,
)


class Examples(NamedTuple):
    instances: list[Manifold]
    off_point: Callable[[Array], Array] | None
    """Makes an array that is no point out of a point; None where every array is one."""
    off_tangent: Callable[[Array], Array] | None
    """Makes an array that is not tangent at a point out of it; None where every array is tangent."""


def corner(x: Array) -> Array:
    """An asymmetric matrix (for m = 1, where all are symmetric, a NaN)."""
    y = np.zeros_like(x)
    y[..., 0, -1] = 1 if x.shape[-1] > 1 else np.nan
    return y


EXAMPLES = {
    "euclidean": Examples([Euclidean(1), Euclidean(3), Euclidean(2, 3)], None, None),
    "sphere": Examples([Sphere(2), Sphere(3), Sphere(50)], lambda x: 1.001 * x, lambda w: w),
    "hyperboloid": Examples([Hyperboloid(1), Hyperboloid(2), Hyperboloid(20)], lambda x: 1.001 * x, lambda w: w),
    "poincare-ball": Examples(
        [PoincareBall(1), PoincareBall(2), PoincareBall(20)],
        lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True) * (1 + 1e-12),
        None,
    ),
    "spd-affine-invariant": Examples([SPDAffineInvariant(m) for m in (1, 2, 3, 6)], lambda x: -x, corner),
    "spd-log-euclidean": Examples([SPDLogEuclidean(m) for m in (1, 2, 3, 6)], lambda x: -x, corner),
    "spd-bures-wasserstein": Examples([SPDBuresWasserstein(m) for m in (1, 2, 3, 6)], lambda x: -x, corner),
    "stiefel": Examples(
        [Stiefel(2, 1), Stiefel(3, 1), Stiefel(4, 3), Stiefel(10, 3)], lambda x: 1.001 * x, lambda w: w
    ),
    "grassmann": Examples(
        [Grassmann(2, 1), Grassmann(4, 1), Grassmann(5, 2), Grassmann(5, 3), Grassmann(12, 3)],
        lambda x: 1.001 * x,
        lambda w: w,
    ),
    "product": Examples(
        [
            Product([Sphere(3)]),
            Product([Sphere(2), Euclidean(2, 2), SPDAffineInvariant(2)]),
            Product([Hyperboloid(2), Product([PoincareBall(2), Stiefel(4, 2)]), SPDBuresWasserstein(2)]),
        ],
        lambda x: 1.001 * x,
        lambda w: w,
    ),
}

every_manifold = pytest.mark.parametrize(
    ("name", "m"), [(name, m) for name, examples in EXAMPLES.items() for m in examples.instances], ids=lambda v: str(v)
)
EPS = np.finfo(float).eps


def rng_for(m: Manifold) -> np.random.Generator:
    return np.random.default_rng([len(repr(m)), m.dim, *m.point_shape])


def reach(m: Manifold, w: Array, part: float) -> Array:
    """A share of the injectivity radius; of 3 where it is infinite."""
    radius = m.injectivity_radius(w)
    return part * np.where(np.isfinite(radius), radius, 3.0)


def neighbours(m: Manifold, rng: np.random.Generator, n: int, part: float = 0.45) -> tuple[Array, Array, Array]:
    """Base points and two points near each, less than an injectivity radius apart (part < 1/2), [n, *point_shape]."""
    w = m.random_point(rng, (n,))
    x, y = (m.exp(w, tangent(m, rng, w, reach(m, w, part) * rng.uniform(0.2, 1, n))) for _ in range(2))
    return w, x, y


def metric_scale(m: Manifold, w: Array) -> Array:
    """The largest norm of a tangent vector that a relative change of one of w's entries makes."""
    size = np.abs(w).max(axis=tuple(range(-len(m.point_shape), 0)))
    entries = math.prod(m.point_shape)
    changes = np.eye(entries).reshape(entries, *[1] * size.ndim, *m.point_shape)
    return size * m.norm(w, m.project_tangent(w, changes)).max(axis=0)


def same_points(m: Manifold, x: Array, y: Array, tolerance: float = 1e-9) -> None:
    assert np.all(m.dist(x, y) <= tolerance), m.dist(x, y)


# Registry -------------------------------------------------------------------------------------------------------------


def test_every_registered_manifold_has_examples() -> None:
    assert EXAMPLES.keys() == MANIFOLDS.keys()


@every_manifold
def test_registry_knows_it_by_its_name(name: str, m: Manifold) -> None:
    assert type(m) is MANIFOLDS[name]
    assert m.name == name
    assert type(m).__name__ in repr(m)
    assert isinstance(m.homogeneous, bool) and isinstance(m.complete, bool) and m.transport


# Batches --------------------------------------------------------------------------------------------------------------


@every_manifold
def test_batch_axes_broadcast_and_equal_the_loop(name: str, m: Manifold) -> None:
    rng = rng_for(m)
    w = m.random_point(rng, (3, 1))
    wide = np.broadcast_to(w, (3, 4, *m.point_shape))
    u, v = (tangent(m, rng, wide, reach(m, wide, 0.4)) for _ in range(2))
    x = m.exp(w, u)
    c = rng.standard_normal((3, 4, m.dim))
    a = rng.standard_normal((3, 4, *m.normals_shape))
    y = rng.standard_normal((3, 4, *m.point_shape))
    calls: dict[str, tuple[Array, ...]] = {
        "inner": (w, u, v),
        "norm": (w, v),
        "dist": (w, x),
        "injectivity_radius": (w,),
        "exp": (w, v),
        "retract": (w, v),
        "log": (w, x),
        "parallel_transport": (w, x, v),
        "coordinates": (w, v),
        "from_coordinates": (w, c),
        "tangent_from_normals": (w, a),
        "project_tangent": (w, y),
        "riemannian_gradient": (w, y),
        "project_point": (x,),
        "valid_points": (x,),
    }
    for method, arguments in calls.items():
        before = [argument.copy() for argument in arguments]
        together = np.asarray(getattr(m, method)(*arguments))
        for argument, was in zip(arguments, before, strict=True):
            np.testing.assert_array_equal(argument, was, err_msg=f"{method} changed its argument")
            assert not np.shares_memory(together, argument), f"{method} returns its argument"
        assert together.dtype == (bool if method == "valid_points" else np.float64), method
        batch = np.broadcast_shapes(*(argument.shape[:2] for argument in arguments))
        assert together.shape[:2] == batch, method
        for i, j in np.ndindex(batch):
            alone = [argument[min(i, len(argument) - 1), min(j, argument.shape[1] - 1)] for argument in arguments]
            np.testing.assert_allclose(
                together[i, j], getattr(m, method)(*alone), rtol=1e-10, atol=1e-11, err_msg=f"{method} {i, j}"
            )


@every_manifold
def test_maps_into_the_tangent_space_broadcast_both_ways(name: str, m: Manifold) -> None:
    rng = rng_for(m)
    w = m.random_point(rng, (3, 1))
    for method, shape in (
        ("from_coordinates", (m.dim,)),
        ("tangent_from_normals", m.normals_shape),
        ("project_tangent", m.point_shape),
        ("riemannian_gradient", m.point_shape),
    ):
        a = rng.standard_normal((4, *shape))
        together = getattr(m, method)(w, a)
        assert together.shape == (3, 4, *m.point_shape), method
        close(together[2, 1], getattr(m, method)(w[2, 0], a[1]), 1e-11)


@every_manifold
def test_an_empty_batch_is_fine(name: str, m: Manifold) -> None:
    w = m.random_point(np.random.default_rng(0), (0,))
    v = m.tangent_from_normals(w, np.zeros((0, *m.normals_shape)))
    assert w.shape == v.shape == (0, *m.point_shape)
    assert m.exp(w, v).shape == m.log(w, w).shape == m.parallel_transport(w, w, v).shape == (0, *m.point_shape)
    assert m.coordinates(w, v).shape == (0, m.dim)
    assert m.dist(w, w).shape == m.norm(w, v).shape == m.injectivity_radius(w).shape == m.valid_points(w).shape == (0,)


# Metric, geodesics ----------------------------------------------------------------------------------------------------


@every_manifold
def test_inner_product_is_bilinear_symmetric_and_positive(name: str, m: Manifold) -> None:
    rng = rng_for(m)
    w = m.random_point(rng, (20,))
    u, v, z = (tangent(m, rng, w, 1.0) for _ in range(3))
    close(m.inner(w, u, v), m.inner(w, v, u))
    close(m.inner(w, 2 * u - 3 * v, z), 2 * m.inner(w, u, z) - 3 * m.inner(w, v, z))
    close(m.inner(w, u, u), np.ones(20))
    close(m.norm(w, -2 * u), np.full(20, 2.0))
    frame = m.from_coordinates(w[:, None], np.eye(m.dim))
    gram = m.inner(w[:, None, None], frame[:, :, None], frame[:, None])
    close(gram, np.broadcast_to(np.eye(m.dim), gram.shape))


@every_manifold
def test_exp_and_log_are_inverse(name: str, m: Manifold) -> None:
    rng = rng_for(m)
    w = m.random_point(rng, (20,))
    v = tangent(m, rng, w, reach(m, w, 0.95) * rng.uniform(0.05, 1, 20))
    x = m.exp(w, v)
    close(m.log(w, x), v, 1e-8)
    same_points(m, m.exp(w, m.log(w, x)), x, 1e-8)
    assert m.check_point(x, explain=True) == (True, "")
    assert m.check_tangent(w, m.log(w, x), explain=True) == (True, "")


@every_manifold
def test_distance_is_a_metric_and_the_length_of_log(name: str, m: Manifold) -> None:
    w, x, y = neighbours(m, rng_for(m), 20)
    close(m.dist(w, x), m.norm(w, m.log(w, x)))
    close(m.dist(x, y), m.dist(y, x))
    assert np.all(m.dist(x, y) > 0)
    assert np.all(m.dist(x, y) <= m.dist(x, w) + m.dist(w, y) + 1e-12)


@every_manifold
@pytest.mark.parametrize("part", [0.3, 0.99])
def test_exp_goes_as_far_as_the_vector_is_long(name: str, m: Manifold, part: float) -> None:
    rng = rng_for(m)
    w = m.random_point(rng, (20,))
    assert np.all(m.injectivity_radius(w) > 0)
    length = reach(m, w, part)
    close(m.dist(w, m.exp(w, tangent(m, rng, w, length))), length, 1e-8)


@every_manifold
def test_zero_vector_stays(name: str, m: Manifold) -> None:
    w = m.random_point(rng_for(m), (20,))
    zero = np.zeros_like(w)
    np.testing.assert_allclose(m.exp(w, zero), w, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(m.retract(w, zero), w, rtol=1e-13, atol=1e-13)
    assert np.all(m.dist(w, w) <= 1e-14)
    assert np.all(m.norm(w, m.log(w, w)) <= 1e-14)
    assert np.all(m.norm(w, zero) == 0)


@every_manifold
def test_geodesics_have_constant_speed(name: str, m: Manifold) -> None:
    rng = rng_for(m)
    w = m.random_point(rng, (6, 1))
    times = np.linspace(0, 1, 9)
    length = reach(m, w, 0.95)
    v = tangent(m, rng, w, length)
    path = m.exp(w, times[:, None].reshape(9, *[1] * len(m.point_shape)) * v)
    # Between any two of the points: so the curve is straight, and not only parametrised by arc length.
    close(m.dist(path[:, :, None], path[:, None, :]), length[..., None] * np.abs(times[:, None] - times), 1e-8)


@every_manifold
def test_retraction_agrees_with_exp_to_first_order(name: str, m: Manifold) -> None:
    rng = rng_for(m)
    w = m.random_point(rng, (10,))
    length = reach(m, w, 0.3)
    v = tangent(m, rng, w, length)
    assert m.check_point(m.retract(w, v))
    apart = [np.max(m.dist(m.exp(w, h * v), m.retract(w, h * v)) / length) for h in (1e-2, 1e-3)]
    assert apart[0] <= 1e-2
    assert apart[1] <= 1.2e-2 * apart[0] or apart[1] < 1e-12


@every_manifold
@pytest.mark.parametrize("separation", [1e-9, 1e-12])
def test_neighbours_lose_no_digits(name: str, m: Manifold, separation: float) -> None:
    rng = rng_for(m)
    w = m.random_point(rng, (20,))
    unit = tangent(m, rng, w, 1.0)
    v = separation * unit
    x = m.exp(w, v)
    # The point exp(w, v) itself is rounded: by some eps in the entries, as a tangent vector, so in the Riemannian norm.
    rounding = 30 * EPS * np.sqrt(m.dim) * metric_scale(m, w)
    assert np.all(np.abs(m.dist(w, x) - separation) <= rounding)
    assert np.all(m.norm(w, m.log(w, x) - v) <= rounding)
    # Two computations of the distance between the same two arrays have no such excuse (on the sphere, |x| = |w| up to
    # rounding, so that chord and tangent differ to second order).
    same = 1e-9 + (EPS / separation) ** 2
    np.testing.assert_allclose(m.norm(w, m.log(w, x)), m.dist(w, x), rtol=same)
    np.testing.assert_allclose(m.dist(x, w), m.dist(w, x), rtol=same)


@every_manifold
def test_nan_entries_stay_nan_and_leave_the_others_alone(name: str, m: Manifold) -> None:
    rng = rng_for(m)
    w, x, _ = neighbours(m, rng, 5)
    v = tangent(m, rng, w, reach(m, w, 0.4))
    good = np.array([True, False, True, False, True])
    bad_x, bad_v = x.copy(), v.copy()
    bad_x[~good] = bad_v[~good] = np.nan
    for method, arguments, bad_arguments in (
        ("dist", (w, x), (w, bad_x)),
        ("exp", (w, v), (w, bad_v)),
        ("retract", (w, v), (w, bad_v)),
        ("parallel_transport", (w, x, v), (w, x, bad_v)),
        ("coordinates", (w, v), (w, bad_v)),
        ("project_tangent", (w, v), (w, bad_v)),
        ("project_point", (x,), (bad_x,)),
    ):
        result, expected = getattr(m, method)(*bad_arguments), getattr(m, method)(*arguments)
        np.testing.assert_allclose(result[good], expected[good], rtol=1e-11, atol=1e-11, err_msg=method)
        assert np.isnan(result[~good]).reshape(2, -1).any(axis=1).all(), method
    close(m.log(w, bad_x, strict=False)[good], m.log(w, x)[good], 1e-11)
    assert np.isnan(m.log(w, bad_x, strict=False)[~good]).reshape(2, -1).any(axis=1).all()
    with pytest.raises(LogError, match=r"batch entries \(1,\), \(3,\);") as error:
        m.log(w, bad_x)
    assert error.value.entries == [(1,), (3,)]


# Transport ------------------------------------------------------------------------------------------------------------


@every_manifold
def test_transport_is_a_linear_isometry_onto_the_tangent_space(name: str, m: Manifold) -> None:
    rng = rng_for(m)
    w, x, _ = neighbours(m, rng, 20)
    u, v = (tangent(m, rng, w, 1.0) for _ in range(2))
    carried = m.parallel_transport(w, x, u)
    assert m.check_tangent(x, carried, explain=True) == (True, "")
    close(m.inner(x, carried, m.parallel_transport(w, x, v)), m.inner(w, u, v))
    close(m.norm(x, carried), np.ones(20))
    close(m.parallel_transport(w, x, 2 * u - 3 * v), 2 * carried - 3 * m.parallel_transport(w, x, v))
    close(m.parallel_transport(w, w, u), u)
    close(m.parallel_transport(x, w, carried), u)


@every_manifold
def test_parallel_transport_carries_the_geodesic(name: str, m: Manifold) -> None:
    if m.transport != "parallel":
        return
    w, x, _ = neighbours(m, rng_for(m), 20, part=0.9)
    close(m.parallel_transport(w, x, m.log(w, x)), -m.log(x, w), 1e-8)


@every_manifold
def test_parallel_transport_solves_the_transport_equation(name: str, m: Manifold) -> None:
    """A ladder of n rungs is parallel transport up to O(1/n^2) (exact on symmetric spaces); so it is extrapolated."""
    if m.transport != "parallel":
        return
    rng = rng_for(m)
    w = m.random_point(rng, (4,))
    v = tangent(m, rng, w, reach(m, w, 0.3))
    u = tangent(m, rng, w, 1.0)
    x = m.exp(w, v)

    def pole_ladder(n: int) -> Array:
        """A short arrow is carried by reflecting its tip in the midpoint of each of n rungs (Pennec 2018)."""
        step = reach(m, w, 0.1).reshape(-1, *[1] * len(m.point_shape)) / n
        point, arrow = w, step * u
        for i in range(n):
            middle, point_after = m.exp(w, (i + 0.5) / n * v), m.exp(w, (i + 1) / n * v)
            mirrored = m.exp(middle, -m.log(middle, m.exp(point, arrow)))
            point, arrow = point_after, -m.log(point_after, mirrored)
        return arrow / step

    coarse, fine = pole_ladder(8), pole_ladder(16)
    close((4 * fine - coarse) / 3, m.parallel_transport(w, x, u), 1e-5)


# Tangent space --------------------------------------------------------------------------------------------------------


@every_manifold
def test_coordinates_are_an_isometry_with_its_inverse(name: str, m: Manifold) -> None:
    rng = rng_for(m)
    w = m.random_point(rng, (20,))
    c = rng.standard_normal((20, m.dim))
    v = m.from_coordinates(w, c)
    assert m.check_tangent(w, v, explain=True) == (True, "")
    close(m.coordinates(w, v), c)
    close(m.norm(w, v), np.linalg.norm(c, axis=-1))
    projected = m.project_tangent(w, rng.standard_normal(w.shape))
    close(m.from_coordinates(w, m.coordinates(w, projected)), projected)


@every_manifold
def test_dimension_is_the_rank_of_the_tangent_projection(name: str, m: Manifold) -> None:
    w = m.random_point(rng_for(m))
    ambient = math.prod(m.point_shape)
    matrix = m.project_tangent(w, np.eye(ambient).reshape(ambient, *m.point_shape)).reshape(ambient, ambient)
    assert np.linalg.matrix_rank(matrix, tol=1e-9) == m.dim


@every_manifold
def test_projection_onto_the_tangent_space(name: str, m: Manifold) -> None:
    rng = rng_for(m)
    w = m.random_point(rng, (20,))
    v = m.project_tangent(w, rng.standard_normal(w.shape))
    assert m.check_tangent(w, v, explain=True) == (True, "")
    close(m.project_tangent(w, v), v, 1e-11)
    v = tangent(m, rng, w, 1.0)
    close(m.project_tangent(w, v), v, 1e-11)


@every_manifold
def test_normals_become_a_tangent_gaussian_exactly(name: str, m: Manifold) -> None:
    rng = rng_for(m)
    w = m.random_point(rng, (3,))
    count = math.prod(m.normals_shape)
    unit = np.eye(count).reshape(count, *m.normals_shape)
    columns = m.coordinates(w[:, None], m.tangent_from_normals(w[:, None], unit))  # [3, count, dim]
    covariance = np.swapaxes(columns, -1, -2) @ columns
    np.testing.assert_allclose(covariance, np.broadcast_to(np.eye(m.dim), covariance.shape), atol=1e-10)
    a = rng.standard_normal((3, *m.normals_shape))
    v = m.tangent_from_normals(w, a)
    assert m.check_tangent(w, v, explain=True) == (True, "")
    close(m.coordinates(w, v), np.einsum("an,and->ad", a.reshape(3, count), columns))


@every_manifold
def test_law_of_the_tangent_gaussian(name: str, m: Manifold) -> None:
    """Whether the figures of the claimed scale are accepted, and those of 2/3 and 3/2 of it rejected."""
    rng = rng_for(m)
    n, sigma = 2000, 0.37
    w = m.random_point(rng)
    v = m.tangent_from_normals(w, sigma * rng.standard_normal((n, *m.normals_shape)))
    c = m.coordinates(w, v)
    for claimed, accepted in ((sigma, True), (2 / 3 * sigma, False), (3 / 2 * sigma, False)):
        radial = stats.kstest((m.norm(w, v) / claimed) ** 2, stats.chi2(m.dim).cdf).pvalue
        entries = stats.kstest((c / claimed).ravel(), stats.norm.cdf).pvalue
        covariance = c.T @ c / claimed**2 / n - np.eye(m.dim)
        if accepted:
            assert radial > 1e-3 and entries > 1e-3
            assert np.abs(covariance).max() < 6 * np.sqrt(2 / n)
        else:
            assert radial < 1e-9 and entries < 1e-9
            assert np.abs(covariance).max() > 6 * np.sqrt(2 / n)


@every_manifold
def test_gradient_is_that_of_finite_differences(name: str, m: Manifold) -> None:
    rng = rng_for(m)
    w = m.random_point(rng, (10,))
    event = tuple(range(-len(m.point_shape), 0))
    linear, square = rng.standard_normal((2, *m.point_shape))
    if name == "grassmann":  # a function of the subspace
        matrix = np.diag(rng.standard_normal(m.point_shape[0]))
        linear, square = np.zeros(m.point_shape), np.repeat(matrix.diagonal()[:, None], m.point_shape[1], axis=1)

    def f(x: Array) -> Array:
        return (linear * x + 0.5 * square * x**2).sum(axis=event)

    gradient = m.riemannian_gradient(w, linear + square * w)
    assert m.check_tangent(w, gradient, explain=True) == (True, "")
    for _ in range(3):
        v = tangent(m, rng, w, reach(m, w, 1 / 3))
        h = 1e-3
        once, twice = (f(m.exp(w, k * h * v)) - f(m.exp(w, -k * h * v)) for k in (1, 2))
        close((8 * once - twice) / (12 * h), m.inner(w, gradient, v), 1e-8)


# Points ---------------------------------------------------------------------------------------------------------------


@every_manifold
def test_random_points_are_points_and_projection_keeps_them(name: str, m: Manifold) -> None:
    rng = rng_for(m)
    for batch in ((), (20,), (2, 3)):
        x = m.random_point(rng, batch)
        assert x.shape == (*batch, *m.point_shape)
        assert m.check_point(x, explain=True) == (True, "")
    close(m.project_point(x), x, 1e-13)
    near = x + 1e-4 * rng.standard_normal(x.shape)
    assert m.check_point(m.project_point(near), explain=True) == (True, "")
    close(m.project_point(m.project_point(near)), m.project_point(near), 1e-13)
    assert np.array_equal(m.random_point(np.random.default_rng(3)), m.random_point(np.random.default_rng(3)))


@every_manifold
def test_checks_name_what_is_wrong(name: str, m: Manifold) -> None:
    rng = rng_for(m)
    x = m.random_point(rng, (3,))
    v = tangent(m, rng, x, 1.0)
    assert m.check_point(x) and m.check_tangent(x, v) and m.valid_points(x).all()

    wrong_shape = x[..., :-1]
    assert not m.check_point(wrong_shape)
    ok, reason = m.check_point(wrong_shape, explain=True)
    assert not ok and str(wrong_shape.shape) in reason and repr(m) in reason
    assert not m.check_tangent(x, v[..., :-1])
    assert "shape" in m.check_tangent(x, v[..., :-1], explain=True)[1]
    with pytest.raises(ValueError, match="floats is needed"):
        m.valid_points(x.astype(int))
    assert "int" in m.check_point(x.astype(int), explain=True)[1]

    for number in (np.nan, np.inf):
        holed = x.copy()
        holed[1].flat[-1] = number
        assert m.valid_points(holed).tolist() == [True, False, True]
        ok, reason = m.check_point(holed, explain=True)
        assert not ok and "entry (1,)" in reason and "NaN or infinite" in reason
        v_holed = v.copy()
        v_holed[2].flat[0] = number
        ok, reason = m.check_tangent(x, v_holed, explain=True)
        assert not ok and "entry (2,)" in reason and "NaN or infinite" in reason

    _, off_point, off_tangent = EXAMPLES[name]
    if off_point is not None:
        off = np.stack([x[0], off_point(x[1]), x[2]])
        assert m.valid_points(off).tolist() == [True, False, True]
        ok, reason = m.check_point(off, explain=True)
        assert not ok and "entry (1,)" in reason and "times the tolerance" in reason
    if off_tangent is not None:
        ok, reason = m.check_tangent(x, np.stack([v[0], off_tangent(x[1]), v[2]]), explain=True)
        assert not ok and "entry (1,)" in reason and repr(m) in reason


# Curvature ------------------------------------------------------------------------------------------------------------


def third_side(k: float, a: Array, b: Array, angle: Array) -> Array:
    """The third side of the triangle with sides a, b and the angle between them, in the plane of curvature k."""
    s = np.sqrt(abs(k))
    if k == 0:
        return np.sqrt((a - b) ** 2 + 4 * a * b * np.sin(angle / 2) ** 2)
    if k > 0:
        square = np.sin(s * (a - b) / 2) ** 2 + np.sin(s * a) * np.sin(s * b) * np.sin(angle / 2) ** 2
        return 2 / s * np.arcsin(np.sqrt(np.clip(square, 0, 1)))
    square = np.sinh(s * (a - b) / 2) ** 2 + np.sinh(s * a) * np.sinh(s * b) * np.sin(angle / 2) ** 2
    return 2 / s * np.arcsinh(np.sqrt(square))


@every_manifold
def test_curvature_bounds_by_triangle_comparison(name: str, m: Manifold) -> None:
    """Toponogov: with curvature >= k the third side is at most that of the plane of curvature k; <= k, at least."""
    rng = rng_for(m)
    low, high = m.curvature_bounds
    assert low <= high
    w = m.random_point(rng, (200,))
    a, b = (reach(m, w, 0.45) * rng.uniform(0.3, 1, 200) for _ in range(2))
    if 0 < high < np.inf:
        a, b = (np.minimum(side, 0.45 * np.pi / np.sqrt(high)) for side in (a, b))
    u, v = (tangent(m, rng, w, side) for side in (a, b))
    # Extreme curvature is in special planes: so half of the hinges are made of basis vectors.
    for side, vectors in ((a, u), (b, v)):
        basis = np.eye(m.dim)[rng.integers(m.dim, size=100)]
        vectors[100:] = m.from_coordinates(w[100:], side[100:, None] * basis)
    angle = np.arccos(np.clip(m.inner(w, u, v) / (a * b), -1, 1))
    side = m.dist(m.exp(w, u), m.exp(w, v))
    assert np.all(side <= third_side(low, a, b, angle) + 1e-7)
    if high < np.inf:
        assert np.all(side >= third_side(high, a, b, angle) - 1e-7)


# The vector manifolds in particular -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: Euclidean(),
        lambda: Euclidean(3, 0),
        lambda: Euclidean(2.5),  # type: ignore[arg-type]
        lambda: Sphere(1),
        lambda: Sphere(2.5),  # type: ignore[arg-type]
        lambda: Hyperboloid(0),
        lambda: PoincareBall(0),
        lambda: Product([]),
        lambda: Product([Sphere]),  # type: ignore[list-item]
    ],
)
def test_sizes_that_make_no_sense_are_refused(make: Callable[[], Manifold]) -> None:
    with pytest.raises(ValueError, match="must be"):
        make()


@pytest.mark.parametrize("n", [2, 3, 50])
def test_sphere_near_the_antipode(n: int) -> None:
    m = Sphere(n)
    rng = rng_for(m)
    w = m.random_point(rng, (20,))
    unit = tangent(m, rng, w, 1.0)
    for gap in (1e-3, 1e-7, 1e-10):
        x = m.exp(w, (np.pi - gap) * unit)
        np.testing.assert_allclose(m.dist(w, x), np.pi - gap, rtol=1e-15, atol=0)
        close(m.log(w, x), (np.pi - gap) * unit, 1e-14 / gap)
        assert m.check_tangent(x, m.parallel_transport(w, x, unit))
        # Past the cut locus the shortest way is the other one.
        beyond = m.exp(w, (np.pi + gap) * unit)
        close(m.log(w, beyond), -(np.pi - gap) * unit, 1e-14 / gap)
    for antipode in (-w, m.exp(w, np.pi * unit)):
        np.testing.assert_allclose(m.dist(w, antipode), np.pi, rtol=1e-15)
        assert np.isnan(m.log(w, antipode, strict=False)).all()
        with pytest.raises(LogError, match=r"no unique shortest geodesic found for batch entries \(0,\), \(1,\)"):
            m.log(w, antipode)


@pytest.mark.parametrize("sign", [1, -1])
def test_sphere_coordinates_at_the_poles(sign: int) -> None:
    m = Sphere(4)
    rng = rng_for(m)
    for tilt in (0.0, 1e-300, 1e-15, 1e-8):
        w = m.exp(np.array([float(sign), 0, 0, 0]), np.array([0, 0, tilt, 0]))
        frame = m.from_coordinates(w, np.eye(3))
        close(frame @ frame.T, np.eye(3), 1e-14)
        assert m.check_tangent(w, frame)
        v = tangent(m, rng, w, 1.0)
        close(m.from_coordinates(w, m.coordinates(w, v)), v, 1e-14)


def test_sphere_steps_do_not_drift() -> None:
    m = Sphere(5)
    rng = rng_for(m)
    w = m.random_point(rng)
    for _ in range(1000):
        w = m.exp(w, m.tangent_from_normals(w, rng.standard_normal(5)))
    assert abs(np.linalg.norm(w) - 1) < 4 * EPS


def far_points(m: Manifold, rng: np.random.Generator, radius: float) -> tuple[Array, Array]:
    """Points at that distance from the centre, 20 of them, and points at a distance of 1 from these."""
    centre = m.project_point(np.zeros(m.point_shape))
    centre = np.broadcast_to(centre, (20, *m.point_shape))
    w = m.exp(centre, tangent(m, rng, centre, radius))
    return w, m.exp(w, tangent(m, rng, w, 1.0))


@pytest.mark.parametrize(
    ("m", "radius"), [(Hyperboloid(1), 15.0), (Hyperboloid(3), 15.0), (PoincareBall(1), 10.0), (PoincareBall(3), 10.0)]
)
def test_hyperbolic_points_far_from_the_centre(m: Manifold, radius: float) -> None:
    rng = rng_for(m)
    centre = m.project_point(np.zeros(m.point_shape))
    w, x = far_points(m, rng, radius)
    assert m.check_point(np.stack([w, x]), explain=True) == (True, "")
    np.testing.assert_allclose(m.dist(centre, w), radius, rtol=1e-12)
    np.testing.assert_allclose(m.dist(w, centre), radius, rtol=1e-9)
    # Storing a vector or a point costs e^radius units in the last place of a distance, and no more is lost.
    lost = EPS * np.exp(radius) * 10
    np.testing.assert_allclose(m.dist(w, x), 1, atol=lost)
    v = m.log(w, x)
    np.testing.assert_allclose(m.norm(w, v), m.dist(w, x), atol=lost)
    assert np.all(m.dist(m.exp(w, v), x) < lost)
    assert m.check_tangent(w, v)
    u = tangent(m, rng, w, 1.0)
    carried = m.parallel_transport(w, x, u)
    assert m.check_tangent(x, carried)
    np.testing.assert_allclose(m.norm(x, carried), 1, atol=lost)
    np.testing.assert_allclose(m.inner(x, carried, m.log(x, w)), -m.inner(w, u, v), atol=lost)
    home = m.log(centre, w)
    close(m.parallel_transport(w, np.broadcast_to(centre, w.shape), m.log(w, centre)), -home, lost)
    c = rng.standard_normal((20, m.dim))
    np.testing.assert_allclose(m.coordinates(w, m.from_coordinates(w, c)), c, atol=lost)


def test_poincare_steps_never_leave_the_ball() -> None:
    m = PoincareBall(3)
    rng = rng_for(m)
    w = np.zeros((50, 3))
    for length in (1.0, 10.0, 40.0, 1000.0, 1e100, 1.0, 1e100):
        w = m.exp(w, tangent(m, rng, w, length))
        assert m.check_point(w, explain=True) == (True, "")
        assert np.all(np.linalg.norm(w, axis=-1) < 1)
        assert np.isfinite(m.log(w, m.random_point(rng, (50,)))).all()
    assert m.check_point(m.project_point(rng.standard_normal((50, 3)) * 1e3))
    assert m.check_point(m.retract(w, tangent(m, rng, w, 5.0)))


def test_poincare_transport_to_and_from_the_centre() -> None:
    m = PoincareBall(3)
    rng = rng_for(m)
    w, zero = m.random_point(rng, (5,)), np.zeros((5, 3))
    v = rng.standard_normal((5, 3))
    shrink = 1 - (w**2).sum(-1, keepdims=True)
    close(m.parallel_transport(zero, w, v), shrink * v)
    close(m.parallel_transport(w, zero, v), v / shrink)
    close(m.parallel_transport(w, np.full((5, 3), 1e-170), v), v / shrink)
    np.testing.assert_array_equal(m.parallel_transport(zero, zero, v), v)


def test_the_two_models_of_hyperbolic_space_agree() -> None:
    ball, sheet = PoincareBall(4), Hyperboloid(4)
    rng = rng_for(ball)

    def lift(x: Array) -> Array:
        gap = 1 - (x**2).sum(-1, keepdims=True)
        return np.concatenate([(2 - gap) / gap, 2 * x / gap], axis=-1)

    w, x = ball.random_point(rng, (2, 20))
    close(sheet.dist(lift(w), lift(x)), ball.dist(w, x), 1e-12)
    # Both frames are carried in parallel from the centre, so coordinates agree, too.
    c = rng.standard_normal((20, 4))
    close(lift(ball.exp(w, ball.from_coordinates(w, c))), sheet.exp(lift(w), sheet.from_coordinates(lift(w), c)))
    close(ball.coordinates(w, ball.log(w, x)), sheet.coordinates(lift(w), sheet.log(lift(w), lift(x))))
    u, v = ball.from_coordinates(w, c), sheet.from_coordinates(lift(w), c)
    close(
        ball.coordinates(x, ball.parallel_transport(w, x, u)),
        sheet.coordinates(lift(x), sheet.parallel_transport(lift(w), lift(x), v)),
    )


def test_product_splits_joins_and_adds_up() -> None:
    m = Product([Sphere(3), Euclidean(2, 2), Hyperboloid(2)])
    rng = rng_for(m)
    x = m.random_point(rng, (5,))
    parts = m.split(x)
    assert [part.shape for part in parts] == [(5, 3), (5, 2, 2), (5, 3)]
    np.testing.assert_array_equal(m.join(parts), x)
    assert m.join([parts[0][0], parts[1], parts[2]]).shape == (5, 10)
    with pytest.raises(ValueError, match="parts must be 3 arrays"):
        m.join(parts[:2])
    assert (m.point_shape, m.normals_shape, m.dim) == ((10,), (9,), 8)
    assert m.curvature_bounds == (-1.0, 1.0)
    assert Product([Sphere(3), Sphere(4)]).curvature_bounds == (0.0, 1.0)
    assert Product([Hyperboloid(3)]).curvature_bounds == (-1.0, -1.0)
    assert m.injectivity_radius(x) == pytest.approx(np.full(5, np.pi))
    w = m.random_point(rng, (5,))
    squares = [f.dist(a, b) ** 2 for f, a, b in zip(m.factors, m.split(w), parts, strict=True)]
    close(m.dist(w, x), np.sqrt(sum(squares)))
    assert m.transport == "parallel" and m.homogeneous and m.complete
    mixed = Product([Sphere(3), SPDBuresWasserstein(2)])
    assert mixed.transport != "parallel" and not mixed.homogeneous and not mixed.complete
    assert repr(m) == "Product([Sphere(3), Euclidean(2, 2), Hyperboloid(2)])"
    bad = x.copy()
    bad[2, -1] += 1
    assert "factor 2, Hyperboloid(2): does not have Lorentz square -1" in m.check_point(bad, explain=True)[1]
