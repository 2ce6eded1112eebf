"""What the experiments on SPD matrices and over manifolds rest on: means, radii, data at hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imsave

from pri_rfed.data.download import DataFolders
from pri_rfed.frechet import frechet_mean
from pri_rfed.manifolds import SPDAffineInvariant, SPDBuresWasserstein
from pri_rfed.noise import tangent_gaussian
from pri_rfed.reproductions.over_manifolds import OverManifoldsSPD, OverManifoldsSphere, frechet_means
from pri_rfed.reproductions.spd import (
    OptimizationBuresWasserstein,
    OptimizationSPDMean,
    PriRFedSPDImages,
    SamplingSPD,
)

EITHER = [OverManifoldsSPD(records=(25,), repetitions=30), OverManifoldsSphere(records=(25,), repetitions=30)]
either = pytest.mark.parametrize("experiment", EITHER, ids=lambda experiment: experiment.name)


def in_ball(experiment: OverManifoldsSPD | OverManifoldsSphere, n: int, seed: int = 0) -> np.ndarray:
    """Points all over the ball, many of them at its edge."""
    rng, manifold = np.random.default_rng(seed), experiment._manifold
    middle = np.eye(*manifold.point_shape) if len(manifold.point_shape) == 2 else np.eye(1, 3)[0]
    v = tangent_gaussian(manifold, middle, 1.0, rng, (n,))
    lengths = experiment._radius * np.minimum(1.0, 1.5 * rng.random(n)) / manifold.norm(middle, v)
    return manifold.exp(middle, lengths.reshape(-1, *(1,) * len(manifold.point_shape)) * v)


@either
def test_means_computed_together_are_the_solver_s(experiment: OverManifoldsSPD | OverManifoldsSphere) -> None:
    data = in_ball(experiment, 8 * 12).reshape(8, 12, *experiment._manifold.point_shape)
    found = frechet_means(experiment._manifold, data)
    for mean, records in zip(found, data, strict=True):
        assert experiment._manifold.dist(mean, frechet_mean(experiment._manifold, records).point) < 1e-8
    again = frechet_means(experiment._manifold, data, found)
    np.testing.assert_allclose(again, found, atol=1e-8)


@either
def test_the_ambient_sensitivity_covers_the_ball(experiment: OverManifoldsSPD | OverManifoldsSphere) -> None:
    points = in_ball(experiment, 500)
    vectors = experiment._ambient(points)
    far = np.linalg.norm(vectors[:, None] - vectors, axis=-1)
    frobenius = np.linalg.norm((points[:, None] - points).reshape(500, 500, -1), axis=-1)
    np.testing.assert_allclose(far, frobenius, atol=1e-12)
    assert 0.6 * experiment._ambient_diameter() < far.max() <= experiment._ambient_diameter()


@either
def test_a_row_holds_what_is_said(experiment: OverManifoldsSPD | OverManifoldsSphere) -> None:
    (row,) = experiment.measure({"records": 25, "seed": 0}, DataFolders())
    assert row["sensitivity_mean"] <= row["sensitivity_largest"] <= row["sensitivity_bound"]
    assert row["sensitivity_constructed"] <= row["sensitivity_bound"] * (1 + 1e-9)
    assert row["sensitivity_bound"] <= row["sensitivity_published"] * (1 + 1e-12)
    # The mean length of a Laplace vector in three dimensions is three times its scale.
    expected = 3 * experiment._ambient_diameter() / (25 * experiment.epsilon)
    assert row["ambient_error"] == pytest.approx(expected, abs=5 * row["ambient_standard_error"])


def test_published_bound_of_the_sphere() -> None:
    x = math.pi / 4
    h = x / math.tan(x)
    assert EITHER[1]._published_sensitivity(10) == pytest.approx(x * (2 - h) / (10 * h))
    assert EITHER[0]._published_sensitivity(10) == pytest.approx(0.3)


@pytest.mark.parametrize("experiment", [OptimizationSPDMean(), OptimizationBuresWasserstein()], ids=lambda e: e.name)
def test_synthetic_records_lie_in_the_public_ball(
    experiment: OptimizationSPDMean | OptimizationBuresWasserstein,
) -> None:
    data = experiment._data(300, np.random.default_rng(0))
    assert data.shape == (300, 2, 2)
    experiment._problem.check_records(data)
    assert experiment._problem.manifold.dist(np.eye(2), data).max() > 0.9 * experiment.radius
    expected = SPDBuresWasserstein if isinstance(experiment, OptimizationBuresWasserstein) else SPDAffineInvariant
    assert isinstance(experiment._problem.manifold, expected)
    inside, outside = data[0], 30 * np.eye(2)
    np.testing.assert_array_equal(experiment._moved_in(inside), inside)
    moved = experiment._moved_in(outside)
    assert experiment._problem.manifold.dist(np.eye(2), moved) == pytest.approx(experiment.radius)
    np.testing.assert_array_equal(experiment._moved_in(np.full((2, 2), np.nan)), np.eye(2))


def test_pathmnist_is_taken_where_it_is_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRIRFED_DATA", raising=False)
    monkeypatch.setattr("pri_rfed.data.download.cache_folder", lambda: tmp_path / "cache")
    rng = np.random.default_rng(0)
    for name in ("with", "without"):
        (tmp_path / name / "ihc").mkdir(parents=True)
        imsave(tmp_path / name / "ihc" / "ihc.png", rng.integers(0, 256, (140, 140, 3), dtype=np.uint8))
    (tmp_path / "with" / "pathmnist").mkdir()
    images = rng.integers(0, 256, (60, 28, 28, 3), dtype=np.uint8)
    labels = np.arange(60)[:, None] % 2
    np.savez(tmp_path / "with" / "pathmnist" / "pathmnist.npz", train_images=images, train_labels=labels)
    federated = PriRFedSPDImages(agents=2, records=10, stride=28, sampled=1)
    central = SamplingSPD(images=12, classes=(0, 1), stride=28, seeds=1)
    for name, what in (("with", "PathMNIST images"), ("without", "patches")):
        folders = DataFolders(tmp_path / name)
        assert federated._records(federated._federation(10), 0, folders).shape == (2 * 10, 9, 9)
        one, other = (central.load(part, folders)[1] for part in central.sets)
        assert one.shape == other.shape == (12, 11, 11) and not np.array_equal(one, other)
        said = [*federated.remarks(folders), *central.remarks(folders)]
        assert sum(what in line for line in said) == 2
        assert any("stand in" in line for line in said) == (name == "without")
