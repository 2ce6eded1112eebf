"""Hyperbolic structured prediction: gradients, bounds, records, and what it says that it protects."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import near
from test_problems import check_gradient
from typer.testing import CliRunner

from pri_rfed.cli import app
from pri_rfed.manifolds.base import Array
from pri_rfed.manifolds.hyperboloid import Hyperboloid
from pri_rfed.privacy.audit import audit, canary
from pri_rfed.privacy.events import Gaussian
from pri_rfed.problems import HyperbolicStructuredPrediction
from pri_rfed.problems.clipping import ClippedGradient, clipped_mean
from pri_rfed.problems.structured_prediction import kernel_weights
from pri_rfed.training import DPRSGD

POLE = np.array([1.0, 0, 0])


def records(rng: np.random.Generator, n: int, reach: float = 1.0, d: int = 2) -> Array:
    manifold = Hyperboloid(d)
    labels = near(manifold, np.eye(d + 1)[0], rng, (n,), reach)
    return np.concatenate([rng.standard_normal((n, 1)), labels], axis=1)


def test_weights_solve_the_kernel_ridge_regression() -> None:
    rng = np.random.default_rng(0)
    features, query = rng.standard_normal((30, 3)), rng.standard_normal(3)
    weights = kernel_weights(features, query, 0.7, 1e-3)
    for i in range(30):
        gram = np.exp(-np.sum((features - features[i]) ** 2, axis=1) / (2 * 0.7**2))
        assert gram @ weights + 1e-3 * weights[i] == pytest.approx(
            np.exp(-np.sum((features[i] - query) ** 2) / (2 * 0.7**2)), abs=1e-10
        )
    # A record's own features single it out.
    assert int(np.argmax(kernel_weights(features, features[7], 0.1, 1e-3))) == 7
    with pytest.raises(ValueError, match="width = 0"):
        kernel_weights(features, query, 0.0, 1.0)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("radius", [None, 2.0])
def test_the_gradient_is_the_derivative_of_the_loss(d: int, radius: float | None) -> None:
    rng = np.random.default_rng(1)
    problem = HyperbolicStructuredPrediction(d + 2, 5.0, radius)
    z = records(rng, 6, d=d)
    assert (z[:, 0] < 0).any() and (z[:, 0] > 0).any()
    check_gradient(problem, problem.manifold.random_point(rng), z, rng)


def test_clipped_means_are_those_of_the_gradients() -> None:
    rng = np.random.default_rng(2)
    problem = HyperbolicStructuredPrediction(4, 5.0, 2.0)
    z, w = records(rng, 24).reshape(3, 8, 4), problem.manifold.random_point(rng, (3,))
    mask, size = rng.random((3, 8)) < 0.7, np.array([8.0, 5.0, 3.0])
    for bound in (None, 0.4):
        expected = np.zeros((3, 3))
        for a in range(3):
            for j in range(8):
                g = problem.gradient(w[a], z[a, j])
                norm = float(problem.manifold.norm(w[a], g))
                expected[a] += mask[a, j] * g * (1 if bound is None else min(1, bound / norm)) / size[a]
        for mean in (problem.clipped_mean, lambda *args: clipped_mean(problem, *args)):
            np.testing.assert_allclose(mean(w, z, bound, mask, size), expected, rtol=1e-10, atol=1e-12)


def test_another_label_moves_a_gradient_by_the_bound_and_no_more() -> None:
    rng = np.random.default_rng(3)
    problem, manifold = HyperbolicStructuredPrediction(4, 3.0, 0.8), Hyperboloid(2)
    assert problem.gradient_difference_bound == pytest.approx(4 * 0.8 * 3.0)
    assert problem.gradient_bound is None
    away = manifold.from_coordinates(POLE, np.array([0.8, 0.0]))
    ends = np.stack([manifold.exp(POLE, away), manifold.exp(POLE, -away)])
    labels = np.concatenate([ends, near(manifold, POLE, rng, (40,), 0.8)])
    for weight in (3.0, -3.0, 0.5):
        z = np.concatenate([np.full((len(labels), 1), weight), labels], axis=1)
        problem.check_records(z[2:])
        for w in (POLE, manifold.random_point(rng), manifold.exp(POLE, 6 * away)):
            g = problem.gradient(w, z)
            apart = manifold.norm(w, g[:, None] - g[None])
            assert apart.max() <= abs(weight) * 4 * 0.8 * (1 + 1e-9)
    z = np.concatenate([np.full((2, 1), 3.0), ends], axis=1)
    g = problem.gradient(POLE, z)
    assert manifold.norm(POLE, g[0] - g[1]) == pytest.approx(4 * 0.8 * 3.0, rel=1e-9)
    assert ClippedGradient(problem, 1.0).difference_bound == 2.0
    assert ClippedGradient(problem, None).difference_bound == pytest.approx(9.6)


def test_without_both_public_bounds_gradients_must_be_clipped() -> None:
    for problem in (
        HyperbolicStructuredPrediction(4),
        HyperbolicStructuredPrediction(4, weight_bound=1.0),
        HyperbolicStructuredPrediction(4, radius=1.0),
    ):
        assert problem.gradient_difference_bound is None
        assert DPRSGD(noise=1.0).check(problem, 5) != []
        assert DPRSGD(noise=1.0, clip=1.0).check(problem, 5) == []


def test_the_event_is_of_another_label() -> None:
    problem = HyperbolicStructuredPrediction(4, 3.0, 0.8)
    event = DPRSGD(noise=2.0).event(problem, 10)
    assert isinstance(event, Gaussian) and (event.sensitivity, event.sigma) == (pytest.approx(0.96), 2.0)
    assert "part is protected" in DPRSGD(noise=1.0, clip=1.0, sampling="poisson").check(problem, 5)[0]


TRAINER = DPRSGD(steps=2, batch="full", noise=1.0, noise_unit="sensitivity", step_size=0.05)


@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_canary_label_loses_nearly_as_much_as_is_claimed(clip: float | None) -> None:
    problem = HyperbolicStructuredPrediction(4, 3.0, 0.5)
    attack = canary(replace(TRAINER, clip=clip), problem, 8)
    assert (attack.data[:, 0] == attack.other[:, 0]).all(), "weights are public, and stay"
    result = audit(attack, repetitions=3000)
    assert "label DP" in str(result.to_dict()["neighbours"])
    found = result.evidence
    assert not found.refuted and found.ratio > 0.5, found


def test_half_the_bound_would_be_found_out() -> None:
    problem = HyperbolicStructuredPrediction(4, 3.0, 0.5)
    attack = canary(TRAINER, problem, 8)
    problem.gradient_difference_bound = 2 * 0.5 * 3.0
    assert audit(attack, repetitions=3000).evidence.refuted


def test_bad_records_are_refused_by_name_and_far_labels_moved() -> None:
    rng = np.random.default_rng(4)
    z = records(rng, 5, 0.4)
    z[:, 0] = [0.1, 0.2, -4.0, 0.3, 0.1]
    with pytest.raises(ValueError, match=r"record \(2,\) has the weight -4, beyond weight_bound = 3"):
        HyperbolicStructuredPrediction(4, 3.0).check_records(z)
    with pytest.raises(ValueError, match=r"hyperbolic-structured-prediction: record .* outside the public ball"):
        HyperbolicStructuredPrediction(4, 5.0, 0.01).check_records(z)
    with pytest.raises(ValueError, match="not a point of the manifold"):
        HyperbolicStructuredPrediction(4).check_records(z[:, [1, 0, 2, 3]])
    with pytest.raises(ValueError, match=r"shape \(5,\)"):
        HyperbolicStructuredPrediction(5).check_records(z)
    moved = HyperbolicStructuredPrediction(4, 5.0, 0.1, outside="move").prepare_records(z)
    assert (moved[:, 0] == z[:, 0]).all()
    assert Hyperboloid(2).dist(POLE, moved[:, 1:]).max() <= 0.1
    assert HyperbolicStructuredPrediction(4).prepare_records(z) is z
    for wrong in ({"n": 2}, {"n": 4, "weight_bound": 0.0}, {"n": 4, "radius": -1.0}, {"n": 4, "weight_bound": np.nan}):
        with pytest.raises(ValueError, match=" = "):
            HyperbolicStructuredPrediction(**wrong)


def test_the_optimum_has_no_gradient_and_nothing_near_beats_it() -> None:
    rng = np.random.default_rng(5)
    problem = HyperbolicStructuredPrediction(4)
    z = records(rng, 30)
    z[:, 0] += 0.5
    best = problem.optimum(z)
    assert best is not None and z[:, 0].sum() > 0 and z[:, 0].min() < 0
    gradient = problem.clipped_mean(best[None], z[None], None, None, np.array([30.0]))
    assert problem.manifold.norm(best, gradient[0]) < 1e-9
    around = near(problem.manifold, best, rng, (200, 1), 2.0)
    assert (problem.loss(around, z).mean(axis=1) >= problem.loss(best, z).mean()).all()
    # With weights of a negative sum there is no least loss.
    assert problem.optimum(z * np.array([-1.0, 1, 1, 1])) is None
    np.testing.assert_array_equal(problem.start(rng), POLE)


CONFIG = """
[run]
rounds = 2
sampled = 2

[problem]
name = "hyperbolic-structured-prediction"
weight_bound = 4.0
radius = 1.0
outside = "move"

[data]
source = "file"
path = "{path}"

[data.partition]
name = "iid"
agents = 2

[trainer]
name = "dp-rsgd"
clip = 1.0
noise = 1.0
"""


def test_a_run_says_that_labels_alone_are_protected(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    z = records(rng, 20)
    np.save(tmp_path / "records.npy", np.clip(z, -4, None))
    config = tmp_path / "run.toml"
    config.write_text(CONFIG.format(path=tmp_path / "records.npy"))
    said = CliRunner().invoke(app, ["run", str(config), "--out", str(tmp_path / "run")], catch_exceptions=False)
    assert said.exit_code == 0 and "label DP" in said.output
    privacy = tmp_path / "run" / "privacy.json"
    assert "label DP" in json.loads(privacy.read_text())["neighbours"]
    for argument in (str(config), str(privacy.parent)):
        told = CliRunner().invoke(app, ["account", argument], catch_exceptions=False)
        assert told.exit_code == 0 and "label DP" in " ".join(told.output.split())
