"""Local training: trajectories, the scale of the noise, sensitivities, events, outputs, batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import EVERY_MANIFOLD, near, unit_vectors
from scipy import stats

from pri_rfed.data.agents import AgentArrays, Records
from pri_rfed.manifolds.base import Array, Manifold
from pri_rfed.manifolds.euclidean import Euclidean
from pri_rfed.manifolds.hyperboloid import Hyperboloid
from pri_rfed.manifolds.spd import SPDAffineInvariant
from pri_rfed.manifolds.sphere import Sphere
from pri_rfed.privacy.events import (
    Composed,
    Event,
    Gaussian,
    NonPrivate,
    PoissonSampled,
    Repeated,
    SampledWithoutReplacement,
    Unit,
)
from pri_rfed.problems import FrechetMean, PrincipalEigenvector, Problem
from pri_rfed.problems.clipping import clip
from pri_rfed.randomness import AgentStreams, Role, stream
from pri_rfed.training import DPRSGD, DPRSVRG, RGD, RSGD, RSVRG, TRAINERS, RFedSVRG, StepSize, Trainer

# Problems to train on -----------------------------------------------------------------------------------------------


class Push(Problem):
    """A record is a number s, or one for each sign of the point's first entry; the gradient is s unit vectors."""

    name = "push"

    def __init__(self, manifold: Manifold, twofold: bool = False):
        self.manifold, self.record_shape = manifold, (2,) if twofold else ()

    def loss(self, w: Array, z: Array) -> Array:
        raise AssertionError("no training looks at the loss")

    def gradient(self, w: Array, z: Array) -> Array:
        if self.record_shape:
            z = np.where(w.reshape(*self.manifold.batch_shape(w), -1)[..., 0] > 0, z[..., 0], z[..., 1])
        z, _ = np.broadcast_arrays(z, np.zeros(self.manifold.batch_shape(w)))
        base = np.broadcast_to(w, (*z.shape, *self.manifold.point_shape))
        return self.manifold.from_coordinates(base, z[..., None] * np.eye(self.manifold.dim)[0])


def components(agents: int = 3, records: int = 12, n: int = 5) -> tuple[Problem, Array, AgentArrays]:
    rng = np.random.default_rng(21)
    problem = PrincipalEigenvector(n)
    z = unit_vectors(rng, (agents, records, n), np.linspace(2, 0.5, n))
    return problem, problem.manifold.random_point(rng), AgentArrays(list(z))


def means(manifold: Manifold, agents: int = 3, records: int = 12) -> tuple[Problem, Array, AgentArrays]:
    rng = np.random.default_rng(22)
    w = manifold.random_point(rng)
    return FrechetMean(manifold), w, AgentArrays(list(near(manifold, w, rng, (agents, records), 0.9)))


def settings() -> list[tuple[Problem, Array, AgentArrays]]:
    return [components(), means(SPDAffineInvariant(2)), means(Hyperboloid(3))]


everywhere = pytest.mark.parametrize("setting", settings(), ids=lambda s: str(s[0].manifold))


def train(
    trainer: Trainer, setting: tuple[Problem, Array, AgentArrays], seed: int = 0, round: int = 0, agents: Any = None
) -> Array:
    problem, w, data = setting
    chosen = np.arange(len(data)) if agents is None else np.asarray(agents)
    return trainer.train(problem, w, data.records(chosen), AgentStreams(seed, round, chosen.tolist()))


def batches_of(data: AgentArrays, agent: int, size: int, steps: int, seed: int = 0, round: int = 0) -> list[Array]:
    streams = AgentStreams(seed, round, [agent])
    return [data[agent][i[0]] for i in streams.batches(data.counts[[agent]], size, steps)]


# Trajectories ---------------------------------------------------------------------------------------------------------


def plain_mean(problem: Problem, w: Array, z: Array, bound: float | None) -> Array:
    total = np.zeros_like(w)
    for record in z:
        g = problem.gradient(w, record)
        norm = float(problem.manifold.norm(w, g))
        total = total + (g if bound is None or norm <= bound else g * (bound / norm))
    return total / len(z)


@everywhere
@pytest.mark.parametrize("move", ["exp", "retract"])
@pytest.mark.parametrize("size", ["full", 4])
def test_without_noise_dp_rsgd_is_the_textbook_loop(
    setting: tuple[Problem, Array, AgentArrays], move: str, size: Any
) -> None:
    problem, w, data = setting
    schedule = StepSize(0.2, "inverse", decay=2.0)
    trainer = DPRSGD(steps=6, batch=size, clip=0.35, noise=0, step_size=schedule, move=move)  # type: ignore[arg-type]
    uploads = train(trainer, setting, seed=3, round=2)
    clipped = 0
    for agent in range(3):
        x = w
        batches = [data[agent]] * 6 if size == "full" else batches_of(data, agent, 4, 6, seed=3, round=2)
        for k, z in enumerate(batches):
            clipped += (problem.manifold.norm(x, problem.gradient(x, z)) > 0.35).sum()
            x = getattr(problem.manifold, move)(x, -0.2 / (1 + k / 2) * plain_mean(problem, x, z, 0.35))
        np.testing.assert_allclose(uploads[agent], x, rtol=1e-10, atol=1e-12)
    assert clipped > 20
    if size == "full":
        unclipped = train(RGD(steps=6, step_size=schedule, move=move), setting)  # type: ignore[arg-type]
        assert np.abs(unclipped - uploads).max() > 1e-3
        np.testing.assert_array_equal(unclipped, train(replace(trainer, clip=None), setting))


@everywhere
@pytest.mark.parametrize("output", ["uniform", "geodesic-average", "weighted-geodesic-average"])
def test_outputs_are_made_of_the_iterates(setting: tuple[Problem, Array, AgentArrays], output: Any) -> None:
    problem, w, _ = setting
    manifold = problem.manifold
    trainer = DPRSGD(steps=5, batch=3, clip=0.5, noise=0.3, step_size=0.1)
    # Steps draw their numbers in sequence, so that shorter trainings are the beginnings of longer ones.
    iterates = [np.broadcast_to(w, (3, *w.shape))] + [train(replace(trainer, steps=k), setting) for k in range(1, 6)]
    upload = train(replace(trainer, output=output), setting)
    if output == "uniform":
        drawn = [int(stream(0, Role.OUTPUT, 0, agent).integers(5)) for agent in range(3)]
        expected = np.stack([iterates[k][agent] for agent, k in enumerate(drawn)])
    else:
        expected = iterates[1]
        for k in range(2, 6):
            share = 1 / k if output == "geodesic-average" else 2 / (k + 1)
            expected = manifold.exp(expected, share * manifold.log(expected, iterates[k]))
    np.testing.assert_allclose(upload, expected, rtol=1e-12, atol=1e-14)


def test_geodesic_averages_have_the_published_weights() -> None:
    setting = means(Euclidean(3))
    trainer = RSGD(steps=4, batch=2, step_size=0.3)
    w = np.stack([train(replace(trainer, steps=k), setting) for k in range(1, 5)])
    equal, growing = (train(replace(trainer, output=f"{kind}geodesic-average"), setting) for kind in ("", "weighted-"))
    np.testing.assert_allclose(equal, w.mean(axis=0))
    np.testing.assert_allclose(growing, np.tensordot([0.1, 0.2, 0.3, 0.4], w, axes=1))


def test_a_uniform_output_is_uniform_and_looks_at_no_data() -> None:
    problem, w = Push(Euclidean(1)), np.zeros(1)
    agents, steps = 4000, 5
    trainer = RSGD(steps=steps, step_size=1.0, output="uniform")
    streams = [AgentStreams(0, 0, range(agents)) for _ in range(2)]
    # Each step moves by -s: the output tells the index.
    out = [
        trainer.train(problem, w, Records(np.full((agents, 1), s), np.ones(agents, dtype=np.int64)), streams[i])
        for i, s in enumerate((-1.0, 3.0))
    ]
    counts = np.bincount(out[0][:, 0].astype(int), minlength=steps)
    assert len(counts) == steps and stats.chisquare(counts).pvalue > 1e-3
    np.testing.assert_array_equal(out[1], -3 * out[0])


def svrg_by_the_book(
    problem: Problem, w: Array, z: Array, batches: Iterator[Array], c0: Any, c1: Any, together: bool, plan: RSVRG
) -> list[Array]:
    """The points of one run without noise, starts of steps first, the end last."""
    manifold, x, points = problem.manifold, w, []
    for _ in range(plan.epochs):
        snapshot = x
        g = plain_mean(problem, snapshot, z, c0)
        for _ in range(plan.inner_steps):
            points.append(x)
            batch = next(batches)
            v = manifold.parallel_transport(snapshot, x, g)
            for record in batch:
                here, there = problem.gradient(x, record), problem.gradient(snapshot, record)
                if together:
                    d = clip(manifold, x, here - manifold.parallel_transport(snapshot, x, there), c1)
                else:
                    there = clip(manifold, snapshot, there, c1)
                    d = clip(manifold, x, here, c1) - manifold.parallel_transport(snapshot, x, there)
                v = v + d / len(batch)
            x = manifold.exp(x, -StepSize.of(plan.step_size)(0) * v)
    return [*points, x]


@everywhere
@pytest.mark.parametrize("difference", ["apart", "together"])
@pytest.mark.parametrize("noised", ["every-step", "once-an-epoch"])
def test_without_noise_dp_rsvrg_is_the_textbook_loop(
    setting: tuple[Problem, Array, AgentArrays], difference: Any, noised: Any
) -> None:
    problem, w, data = setting
    c1 = 0.3 if difference == "apart" else 0.02
    trainer = DPRSVRG(
        epochs=2, inner_steps=4, batch=3, clip_full=0.4, clip_step=c1, noise=0, step_size=0.2,
        difference=difference, full_gradient_noise=noised,
    )  # fmt: skip
    uploads = train(trainer, setting)
    for agent in range(3):
        batches = iter(batches_of(data, agent, 3, 8))
        points = svrg_by_the_book(problem, w, data[agent], batches, 0.4, c1, difference == "together", trainer)
        np.testing.assert_allclose(uploads[agent], points[-1], rtol=1e-9, atol=1e-11)
    plain = RSVRG(epochs=2, inner_steps=4, batch=3, step_size=0.2)
    assert np.abs(train(plain, setting) - uploads).max() > 1e-4
    unclipped = replace(trainer, clip_full=None, clip_step=None)
    np.testing.assert_allclose(train(plain, setting), train(unclipped, setting), rtol=1e-9, atol=1e-12)


@everywhere
def test_restarts_begin_from_a_uniformly_drawn_point_of_the_run_before(
    setting: tuple[Problem, Array, AgentArrays],
) -> None:
    problem, w, data = setting
    plan = RSVRG(epochs=2, inner_steps=3, batch=3, step_size=0.2, restarts=3)
    uploads, drawn_last = train(plan, setting), train(replace(plan, output="uniform"), setting)
    for agent in range(3):
        batches, x = iter(batches_of(data, agent, 3, 18)), w
        rng = stream(0, Role.OUTPUT, 0, agent)
        for _ in range(3):
            points = svrg_by_the_book(problem, x, data[agent], batches, None, None, False, plan)
            x = points[int(rng.integers(6))]
        np.testing.assert_allclose(uploads[agent], points[-1], rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(drawn_last[agent], x, rtol=1e-9, atol=1e-11)


@everywhere
def test_rfedsvrg_corrects_towards_the_gradient_of_all_agents(setting: tuple[Problem, Array, AgentArrays]) -> None:
    problem, w, data = setting
    data = AgentArrays([data[0], data[1][:5], data[2][:9]])
    manifold = problem.manifold
    uploads = train(RFedSVRG(inner_steps=4, step_size=0.2), (problem, w, data))
    everyone = plain_mean(problem, w, data.all_records(), None)
    for agent in range(3):
        x = w
        own = plain_mean(problem, w, data[agent], None)
        for _ in range(4):
            v = plain_mean(problem, x, data[agent], None) - manifold.parallel_transport(w, x, own - everyone)
            x = manifold.exp(x, -0.2 * v)
        np.testing.assert_allclose(uploads[agent], x, rtol=1e-9, atol=1e-11)
    assert RFedSVRG(inner_steps=4).exchanges_gradients and not RSVRG().exchanges_gradients


def test_step_sizes_by_the_formula() -> None:
    assert [StepSize(0.5)(k, 9) for k in range(3)] == [0.5] * 3
    assert [StepSize(1.0, "inverse", decay=2)(k) for k in (0, 2, 4)] == [1, 1 / 2, 1 / 3]
    assert [StepSize(1.0, "inverse-sqrt")(k) for k in (0, 3, 8)] == [1, 1 / 2, 1 / 3]
    assert [StepSize.strongly_convex(4)(k) for k in range(3)] == [1 / 4, 1 / 8, 1 / 12]
    assert [StepSize(1.0, rounds=5)(0, t) for t in (0, 5, 10)] == [1, 1 / 2, 1 / 3]
    assert StepSize.of(0.25) == StepSize(0.25)
    for bad in ({"initial": 0.0}, {"initial": 1.0, "decay": -1.0}, {"initial": 1.0, "schedule": "cosine"}):
        with pytest.raises(ValueError, match="step size: "):
            StepSize(**bad)  # type: ignore[arg-type]


def test_step_sizes_decay_over_rounds() -> None:
    setting = means(Euclidean(2))
    w = setting[1]
    slow = RGD(steps=1, step_size=StepSize(0.3, rounds=1.0))
    first, third = train(slow, setting, round=0) - w, train(slow, setting, round=2) - w
    np.testing.assert_allclose(third, first / 3)


# Every agent by itself ------------------------------------------------------------------------------------------------

TRAINERS_TO_TRY: list[Trainer] = [
    DPRSGD(steps=4, clip=0.5, noise=0.1, step_size=0.1),
    DPRSGD(steps=4, batch=3, clip=0.5, noise=2.0, noise_unit="sensitivity", step_size=0.1, output="uniform"),
    DPRSGD(steps=4, batch=3, clip=0.5, noise=0.1, step_size=0.1, sampling="poisson", output="geodesic-average"),
    DPRSGD(steps=4, batch="full", clip=0.5, noise=0.1, step_size=0.1, sampling="poisson", nominal=9),
    DPRSVRG(epochs=2, inner_steps=3, batch=2, clip_full=0.5, clip_step=0.4, noise=0.1, step_size=0.1, restarts=2),
    DPRSVRG(
        epochs=2, inner_steps=3, batch="full", clip_full=0.5, clip_step=0.1, noise=0.1, step_size=0.1,
        difference="together", full_gradient_noise="once-an-epoch", output="uniform",
    ),
    DPRSVRG(
        epochs=2, inner_steps=3, batch=2, clip_full=0.5, clip_step=0.4, noise=0.1, step_size=0.1, restarts=2,
        full_gradient_noise="once-an-epoch",
    ),
    RSGD(steps=4, batch=1, step_size=0.1, move="retract"),
    RSVRG(epochs=2, inner_steps=3, batch=2, step_size=0.1),
]  # fmt: skip


@everywhere
@pytest.mark.parametrize("trainer", TRAINERS_TO_TRY, ids=lambda t: t.name)
def test_an_upload_depends_on_the_own_records_and_streams_alone(
    setting: tuple[Problem, Array, AgentArrays], trainer: Trainer
) -> None:
    problem, w, data = setting
    data = AgentArrays([data[0][:7], data[1], data[2][:3]])
    together = train(trainer, (problem, w, data), seed=5, round=4)
    order = [2, 0, 1]
    np.testing.assert_allclose(
        train(trainer, (problem, w, data), 5, 4, agents=order), together[order], rtol=1e-12, atol=1e-12
    )
    for agent in range(3):
        alone = train(trainer, (problem, w, data), 5, 4, agents=[agent])
        np.testing.assert_allclose(alone[0], together[agent], rtol=1e-12, atol=1e-12)
    assert problem.manifold.check_point(together)
    again = train(trainer, (problem, w, data), seed=5, round=4)
    np.testing.assert_array_equal(again, together)
    for other in (train(trainer, (problem, w, data), 6, 4), train(trainer, (problem, w, data), 5, 5)):
        assert np.abs(other - together).max() > 1e-6


@pytest.mark.parametrize("manifold", EVERY_MANIFOLD, ids=str)
@pytest.mark.parametrize("trainer", [TRAINERS_TO_TRY[0], TRAINERS_TO_TRY[4], TRAINERS_TO_TRY[5]], ids=lambda t: t.name)
def test_training_runs_on_every_manifold(manifold: Manifold, trainer: Trainer) -> None:
    uploads = train(trainer, means(manifold, agents=2, records=6))
    assert manifold.check_point(uploads)


def test_numbers_are_the_same_whatever_is_drawn_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = components()
    for trainer in TRAINERS_TO_TRY:
        monkeypatch.setattr("pri_rfed.randomness._CHUNK_NUMBERS", 1 << 20)
        at_once = train(trainer, setting)
        for numbers in (1, 40):
            monkeypatch.setattr("pri_rfed.randomness._CHUNK_NUMBERS", numbers)
            np.testing.assert_array_equal(train(trainer, setting), at_once)


# The scale of the noise -----------------------------------------------------------------------------------------------


def assert_scale(values: Array, sigma: float) -> None:
    """The values are N(0, sigma^2) in scale; the test would reject two thirds and three halves of it."""
    total, low, high = float((values**2).sum()) / sigma**2, *stats.chi2(values.size).ppf([1e-5, 1 - 1e-5])
    assert low < total < high
    assert low > total * (2 / 3) ** 2 * 1.2 and high < total * (3 / 2) ** 2 / 1.2, "not enough values to tell"


NOISE = 0.7
DELTA_1, DELTA_2 = 2 * 0.4 / 8, 4 * 0.3 / 2  # the sensitivities of the trainings below on 8 records
ROOT, REST = np.sqrt(0.3), np.sqrt(0.7)
SVRG: dict[str, Any] = {
    "epochs": 1, "batch": 2, "clip_full": 0.4, "clip_step": 0.3, "noise": NOISE, "alpha": 0.3, "step_size": 1e-4,
}  # fmt: skip
BY_SENSITIVITY = {"noise_unit": "sensitivity"}
ONCE = {"full_gradient_noise": "once-an-epoch"}

# The trainer, and the standard deviation of the sum of its steps' noise.
SCALES: list[tuple[Trainer, float]] = [
    (DPRSGD(steps=1, clip=0.4, noise=NOISE, step_size=1e-4), NOISE),
    (DPRSGD(steps=1, batch=2, clip=0.4, noise=NOISE, step_size=1e-4), NOISE),
    (DPRSGD(steps=1, clip=0.4, noise=NOISE, step_size=1e-4, **BY_SENSITIVITY), NOISE * 0.8 / 8),  # type: ignore
    (DPRSGD(steps=9, batch=2, clip=0.4, noise=NOISE, step_size=1e-4, **BY_SENSITIVITY), 3 * NOISE * 0.8 / 2),  # type: ignore
    (DPRSGD(steps=1, batch=2, clip=0.4, noise=NOISE, step_size=1e-4, sampling="poisson"), NOISE),
    (
        DPRSGD(steps=1, batch=2, clip=0.4, noise=NOISE, step_size=1e-4, sampling="poisson", **BY_SENSITIVITY),  # type: ignore
        NOISE * 0.4 / 2,
    ),
    (DPRSVRG(inner_steps=1, **SVRG), NOISE),
    (DPRSVRG(inner_steps=4, **SVRG), 2 * NOISE),
    (DPRSVRG(inner_steps=4, **SVRG, difference="together"), 2 * NOISE),
    (DPRSVRG(inner_steps=4, **SVRG, **ONCE), NOISE * np.hypot(4 * ROOT, 2 * REST)),
    (DPRSVRG(inner_steps=4, **SVRG, **ONCE, restarts=1, difference="together"), NOISE * np.hypot(4 * ROOT, 2 * REST)),
    (DPRSVRG(inner_steps=4, **SVRG, **BY_SENSITIVITY), 2 * NOISE * np.hypot(ROOT * DELTA_1, REST * DELTA_2)),
    (
        DPRSVRG(inner_steps=4, **SVRG, **BY_SENSITIVITY, difference="together"),
        2 * NOISE * np.hypot(ROOT * DELTA_1, REST * DELTA_2 / 2),
    ),
    (
        DPRSVRG(inner_steps=100, **{**SVRG, **BY_SENSITIVITY, **ONCE}),
        NOISE * np.hypot(100 * ROOT * DELTA_1, 10 * REST * DELTA_2),
    ),
]


@pytest.mark.parametrize("manifold", [Sphere(4), SPDAffineInvariant(2), Hyperboloid(3)], ids=str)
@pytest.mark.parametrize(("trainer", "sigma"), SCALES, ids=[f"{i}-{t.name}" for i, (t, _) in enumerate(SCALES)])
def test_the_noise_has_its_scale_in_the_riemannian_norm(manifold: Manifold, trainer: Trainer, sigma: float) -> None:
    agents = 300
    w = near(manifold, manifold.random_point(np.random.default_rng(31)), np.random.default_rng(32), (), 0.9)
    nothing = Records(np.zeros((agents, 8)), np.full(agents, 8))
    uploads = trainer.train(Push(manifold), w, nothing, AgentStreams(7, 0, range(agents)))
    base = np.broadcast_to(w, uploads.shape)
    assert_scale(manifold.coordinates(base, manifold.log(base, uploads)) / 1e-4, sigma)


def test_agents_with_fewer_records_get_more_noise() -> None:
    problem, w = Push(Euclidean(3)), np.zeros(3)
    counts = np.repeat([4, 16], 300)
    trainer = DPRSGD(steps=1, clip=0.5, noise=2.0, noise_unit="sensitivity", step_size=1.0)
    uploads = trainer.train(problem, w, Records(np.zeros((600, 16)), counts), AgentStreams(1, 0, range(600)))
    assert_scale(uploads[:300], 2 * 1.0 / 4)
    assert_scale(uploads[300:], 2 * 1.0 / 16)
    svrg = DPRSVRG(**{**SVRG, "step_size": 1.0, "inner_steps": 1, "batch": "full"}, noise_unit="sensitivity")  # type: ignore
    uploads = svrg.train(problem, w, Records(np.zeros((600, 16)), counts), AgentStreams(1, 0, range(600)))
    for part, n in ((uploads[:300], 4), (uploads[300:], 16)):
        assert_scale(part, NOISE * np.hypot(ROOT * 0.8 / n, REST * 1.2 / n))


def test_with_a_nominal_number_of_records_all_agents_get_the_same_poisson_noise() -> None:
    problem, w, counts = Push(Euclidean(3)), np.zeros(3), np.repeat([7, 14], 300)
    trainer = DPRSGD(
        steps=1, batch="full", clip=0.5, noise=2.0, noise_unit="sensitivity", step_size=1.0, sampling="poisson",
        nominal=10,
    )  # fmt: skip
    uploads = trainer.train(problem, w, Records(np.zeros((600, 14)), counts), AgentStreams(1, 0, range(600)))
    for part, n in ((uploads[:300], 7), (uploads[300:], 14)):
        assert trainer.event(problem, n) == Gaussian(0.05, 0.1, Unit.ADD_REMOVE_RECORD)
        assert_scale(part, 0.1)


@pytest.mark.parametrize("noised", ["every-step", "once-an-epoch"])
def test_every_restart_adds_the_noise_of_its_own_epochs(noised: Any) -> None:
    agents, epochs, steps = 300, 2, 3
    sigma_1, sigma_2 = 0.7, 0.5
    noise = float(np.hypot(sigma_1, sigma_2))
    trainer = DPRSVRG(
        epochs=epochs, inner_steps=steps, batch=2, clip_full=0.4, clip_step=0.3, noise=noise, step_size=1.0,
        alpha=sigma_1**2 / noise**2, restarts=2, full_gradient_noise=noised,
    )  # fmt: skip
    nothing = Records(np.zeros((agents, 8)), np.full(agents, 8))
    uploads = trainer.train(Push(Euclidean(3)), np.zeros(3), nothing, AgentStreams(7, 0, range(agents)))

    def variance(taken: int) -> float:
        """Of the noise that so many steps of one run add up to."""
        in_epochs = [steps] * (taken // steps) + [taken % steps]
        full = sum(k**2 for k in in_epochs) if noised == "once-an-epoch" else taken
        return sigma_1**2 * full + sigma_2**2 * taken

    # The second run begins where the first one was after a number of steps that is drawn.
    first = [int(stream(7, Role.OUTPUT, 0, agent).integers(epochs * steps)) for agent in range(agents)]
    variances = np.array([variance(k) + variance(epochs * steps) for k in first])
    assert_scale(uploads / np.sqrt(variances)[:, None], 1.0)


def test_steps_and_agents_and_rounds_have_noise_of_their_own() -> None:
    problem, w = Push(Euclidean(200)), np.zeros(200)
    trainer = DPRSGD(steps=1, clip=1.0, noise=1.0, step_size=1.0)
    records = Records(np.zeros((3, 2)), np.full(3, 2))
    noise = [trainer.train(problem, w, records, AgentStreams(s, t, [0, 1, 2])) for s in (0, 1) for t in (0, 1)]
    noise.append(replace(trainer, steps=2).train(problem, w, records, AgentStreams(0, 0, [0, 1, 2])) - noise[0])
    rows = np.concatenate(noise)
    correlations = np.corrcoef(rows) - np.eye(len(rows))
    assert np.abs(correlations).max() < 0.35


# Sensitivities --------------------------------------------------------------------------------------------------------


def releases(event: Event, times: int = 1) -> Iterator[tuple[Gaussian, int]]:
    """Every Gaussian release of an event, with how often it happens."""
    if isinstance(event, Gaussian):
        yield event, times
    elif isinstance(event, Repeated):
        yield from releases(event.event, times * event.times)
    elif isinstance(event, Composed):
        yield from itertools.chain.from_iterable(releases(part, times) for part in event.events)
    elif isinstance(event, SampledWithoutReplacement | PoissonSampled):
        yield from releases(event.event, times)
    else:
        raise AssertionError(event)


def step_of(trainer: Trainer, problem: Problem, w: Array, z: Array, seed: int = 0) -> Array:
    """The vector of the one step of size 1 that a training takes without noise from w, on Euclidean space."""
    records = Records(z[None], np.array([len(z)]))
    return w - trainer.train(problem, w, records, AgentStreams(seed, 0, [0]))[0]


@pytest.mark.parametrize("size", ["full", 3])
def test_replacing_a_record_moves_a_step_by_the_stated_sensitivity_and_no_more(size: Any) -> None:
    problem, w, n = Push(Euclidean(2)), np.zeros(2), 7
    trainer = DPRSGD(steps=1, batch=size, clip=0.6, noise=1.0, step_size=1.0)
    ((stated, times),) = releases(trainer.event(problem, n))
    assert times == 1 and stated.unit is Unit.REPLACE_RECORD
    assert stated.sensitivity == pytest.approx(2 * 0.6 / (n if size == "full" else 3))
    silent = replace(trainer, noise=0)
    rng = np.random.default_rng(41)
    worst = 0.0
    for seed in range(5):
        for place in range(n):
            for values in (np.full(n, -1e9), rng.normal(size=n), np.full(n, np.nan)):
                other = values.copy()
                other[place] = 1e9
                a, b = (step_of(silent, problem, w, z, seed) for z in (values, other))
                worst = max(worst, float(np.linalg.norm(a - b)))
    assert worst == pytest.approx(stated.sensitivity, rel=1e-9)


@pytest.mark.parametrize("n", [7, 10, 14])
@pytest.mark.parametrize(("size", "nominal"), [("full", 10), (3, 10), ("full", None), (3, None)])
def test_adding_a_record_moves_a_poisson_step_by_the_stated_sensitivity_and_no_more(
    size: Any, nominal: Any, n: int
) -> None:
    problem, w, announced = Push(Euclidean(2)), np.zeros(2), nominal or n
    trainer = DPRSGD(steps=1, batch=size, clip=0.6, noise=1.0, step_size=1.0, sampling="poisson", nominal=nominal)
    event = trainer.event(problem, n)
    ((stated, times),) = releases(event)
    assert times == 1 and stated.unit is event.unit is Unit.ADD_REMOVE_RECORD
    assert stated.sensitivity == pytest.approx(0.6 / (announced if size == "full" else 3))
    worst = 0.0
    silent = replace(trainer, noise=0, nominal=announced)  # the same for both neighbours
    for seed in range(10):
        for values in (np.full(n, -1e9), np.full(n, 1e9), 1e9 * (-1.0) ** np.arange(n)):
            # The last record is removed: the coins of the others stay the same.
            a, b = (step_of(silent, problem, w, z, seed) for z in (values, values[:-1]))
            worst = max(worst, float(np.linalg.norm(a - b)))
    assert worst == pytest.approx(stated.sensitivity, rel=1e-9)


@pytest.mark.parametrize("size", ["full", 3])
@pytest.mark.parametrize("difference", ["apart", "together"])
def test_replacing_a_record_moves_both_releases_of_dp_rsvrg_by_the_stated_sensitivities(
    size: Any, difference: Any
) -> None:
    problem, n = Push(Euclidean(2), twofold=True), 7
    b = n if size == "full" else 3
    trainer = DPRSVRG(
        epochs=1, inner_steps=1, batch=size, clip_full=0.5, clip_step=0.3, noise=1.0, difference=difference,
        step_size=1.0,
    )  # fmt: skip
    (full, _), (step, _) = releases(trainer.event(problem, n))
    assert full.sensitivity == pytest.approx(2 * 0.5 / n)
    assert step.sensitivity == pytest.approx((4 if difference == "apart" else 2) * 0.3 / b)
    x, snapshot, g = np.array([[1.0, 0]]), np.array([[-1.0, 0]]), np.zeros((1, 2))
    rng = np.random.default_rng(42)
    worst_full = worst_step = 0.0
    for trial in range(40):
        # Gradients that point one way at x and the other way at the snapshot; one record the other way round.
        z = np.tile([1e9, -1e9], (n, 1)) if trial == 0 else rng.normal(size=(n, 2)) * 10
        other = z.copy()
        other[0] = -z[0] if trial < 20 else rng.normal(size=2) * 10
        records = [Records(r[None], np.array([n])) for r in (z, other)]
        means = [trainer._full_gradient(problem).mean(x, r.values, None, np.array([n])) for r in records]
        worst_full = max(worst_full, float(np.linalg.norm(means[0] - means[1])))
        batches = [(r.values[:, :b], None, np.array([b])) for r in records]
        steps = [trainer._reduced(problem, x, snapshot, g, batch) for batch in batches]  # type: ignore[arg-type]
        worst_step = max(worst_step, float(np.linalg.norm(steps[0] - steps[1])))
    assert worst_full == pytest.approx(full.sensitivity, rel=1e-9)
    assert worst_step == pytest.approx(step.sensitivity, rel=1e-9)


def test_the_bounds_of_the_problem_replace_the_clip() -> None:
    bounded = FrechetMean(Hyperboloid(2), np.array([1.0, 0, 0]), 0.5)
    sgd = DPRSGD(steps=1, noise=1.0, step_size=0.1)
    assert [g.sensitivity for g, _ in releases(sgd.event(bounded, 10))] == [4 * 0.5 / 10]
    assert [g.sensitivity for g, _ in releases(sgd.event(PrincipalEigenvector(3), 10))] == [2 / 10]
    assert [g.sensitivity for g, _ in releases(replace(sgd, clip=0.1).event(bounded, 10))] == [0.2 / 10]
    svrg = DPRSVRG(epochs=1, inner_steps=1, batch="full", noise=1.0)
    for difference in ("apart", "together"):
        event = replace(svrg, difference=difference).event(bounded, 10)  # type: ignore[arg-type]
        assert [g.sensitivity for g, _ in releases(event)] == [2 / 10, 4 / 10]


# Events ---------------------------------------------------------------------------------------------------------------


def test_events_say_what_happens() -> None:
    problem = Push(Euclidean(2))
    sgd = DPRSGD(steps=5, batch=10, clip=0.5, noise=0.3)
    sampled = SampledWithoutReplacement(Gaussian(0.1, 0.3), 10, 50)
    assert sgd.event(problem, 50) == Repeated(sampled, 5)
    assert sgd.event(problem, 10) == Repeated(Gaussian(0.1, 0.3), 5)
    full_batch = replace(sgd, batch="full", noise_unit="sensitivity", steps=1)
    assert full_batch.event(problem, 50) == Gaussian(0.02, 0.3 * 0.02)
    assert replace(sgd, sampling="poisson", nominal=40).event(problem, 50) == Repeated(
        PoissonSampled(Gaussian(0.05, 0.3, Unit.ADD_REMOVE_RECORD), 0.25), 5
    )
    for output in ("uniform", "geodesic-average"):
        assert replace(sgd, output=output).event(problem, 50) == sgd.event(problem, 50)  # type: ignore[arg-type]

    svrg = DPRSVRG(
        epochs=3, inner_steps=4, batch=5, clip_full=1.0, clip_step=0.5, noise=2.0, alpha=0.36, restarts=2
    )
    full, step = Gaussian(2 / 50, 1.2), SampledWithoutReplacement(Gaussian(4 * 0.5 / 5, 1.6), 5, 50)
    assert svrg.event(problem, 50) == Repeated(Composed((full, step)), 24)
    once = replace(svrg, full_gradient_noise="once-an-epoch", difference="together")
    half = SampledWithoutReplacement(Gaussian(2 * 0.5 / 5, 1.6), 5, 50)
    assert once.event(problem, 50) == Composed((Repeated(full, 6), Repeated(half, 24)))


@pytest.mark.parametrize("trainer", TRAINERS_TO_TRY[:7], ids=lambda t: t.name)
def test_noise_is_drawn_for_every_release(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, w, data = components(agents=2)
    drawn: list[int] = []
    original = Sphere.tangent_from_normals
    monkeypatch.setattr(
        Sphere, "tangent_from_normals", lambda self, w, a: drawn.append(len(a)) or original(self, w, a)
    )
    train(trainer, (problem, w, data))
    stated = sum(times for _, times in releases(trainer.event(problem, 12)))
    if isinstance(trainer, DPRSVRG) and trainer.full_gradient_noise == "every-step":
        stated //= 2  # the two releases of a step are added up, and so is their noise, before it is drawn
    assert drawn == [2] * stated


def test_without_noise_nothing_is_private() -> None:
    problem = Push(Euclidean(2))
    for trainer in (
        DPRSGD(clip=1.0, noise=0),
        DPRSVRG(clip_full=1.0, clip_step=1.0, noise=0),
        RSGD(),
        RGD(),
        RSVRG(),
        RFedSVRG(),
    ):
        assert isinstance(trainer.event(problem, 10), NonPrivate)


def test_gradient_calls_are_counted() -> None:
    calls: list[int] = []

    class Counting(FrechetMean):
        def gradient(self, w: Array, z: Array) -> Array:
            calls.append(z.shape[1])
            return super().gradient(w, z)

    _, w, data = means(Euclidean(2), agents=1)
    for trainer in [t for t in TRAINERS_TO_TRY if getattr(t, "sampling", "") != "poisson"]:
        calls.clear()
        train(trainer, (Counting(Euclidean(2)), w, data))
        assert sum(calls) == trainer.gradient_calls(12)


# What does not fit ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: DPRSGD(steps=0, batch=0, noise=-1, clip=0.0), ["steps = 0", "batch = 0", "noise = -1", "clip = 0.0"]),
        (lambda: DPRSGD(steps=2.5, noise=1), ["steps = 2.5"]),  # type: ignore[arg-type]
        (lambda: DPRSGD(noise=float("nan"), output="best"), ["noise = nan", "output = 'best'"]),  # type: ignore
        (lambda: DPRSGD(noise=1, nominal=5), ["nominal = 5"]),
        (lambda: DPRSGD(noise=1, steps=1, output="uniform"), ["output = 'uniform'"]),
        (lambda: RSGD(step_size=-1.0), ["initial = -1.0"]),
        (lambda: DPRSVRG(noise=1, alpha=1.0, difference="both"), ["alpha = 1.0", "difference = 'both'"]),  # type: ignore
        (lambda: RSVRG(epochs=1, inner_steps=1, restarts=2), ["restarts > 1"]),
    ],
)
def test_bad_plans_are_refused_with_all_that_is_wrong(make: Callable[[], Trainer], told: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        make()
    assert all(text in str(error.value) for text in told)


def test_plans_that_do_not_fit_the_data_are_found() -> None:
    unbounded, bounded = FrechetMean(Hyperboloid(2)), PrincipalEigenvector(3)
    assert DPRSGD(batch=10, noise=1, clip=1.0).check(unbounded, 10) == []
    assert "batch = 10" in DPRSGD(batch=10, noise=1, clip=1.0).check(unbounded, 9)[0]
    assert "clip" in DPRSGD(noise=1).check(unbounded, 9)[0]
    assert DPRSGD(noise=0).check(unbounded, 9) == DPRSGD(noise=1).check(bounded, 9) == []
    assert "batch = 10" in DPRSGD(batch=10, noise=1, clip=1.0, sampling="poisson", nominal=9).check(unbounded, 20)[0]
    assert "clip_step" in DPRSVRG(batch=1, clip_full=1.0, noise=1).check(unbounded, 9)[0]
    assert "batch = 3" in RSVRG(batch=3).check(unbounded, 2)[0]


def test_the_registry_holds_every_trainer_by_its_name() -> None:
    assert {"dp-rsgd", "dp-rsvrg", "rsgd", "rsvrg", "rgd", "rfedsvrg"} <= set(TRAINERS)
    assert all(trainer.name == name for name, trainer in TRAINERS.items())


# Random numbers -------------------------------------------------------------------------------------------------------


def test_batches_are_uniform_without_replacement() -> None:
    counts, size, steps = np.array([5, 7]), 3, 6000
    drawn = np.stack(list(AgentStreams(0, 0, [0, 1]).batches(counts, size, steps)))
    assert drawn.shape == (steps, 2, size)
    for agent, n in enumerate(counts):
        sets = np.sort(drawn[:, agent], axis=1)
        assert (np.diff(sets, axis=1) > 0).all() and sets.min() == 0 and sets.max() == n - 1
        possible = {c: i for i, c in enumerate(itertools.combinations(range(n), size))}
        observed = np.bincount([possible[tuple(s)] for s in sets.tolist()], minlength=len(possible))
        assert stats.chisquare(observed).pvalue > 1e-3
        # Steps are independent of each other: neighbouring sets overlap as much as two independent ones.
        overlap = (sets[:-1, :, None] == sets[1:, None, :]).sum() / (steps - 1)
        assert overlap == pytest.approx(size * size / n, abs=0.06)


def test_batches_of_one_and_of_all() -> None:
    one = np.stack(list(AgentStreams(0, 0, [3]).batches(np.array([10]), 1, 5000)))
    assert stats.chisquare(np.bincount(one.ravel(), minlength=10)).pvalue > 1e-3
    everything = np.stack(list(AgentStreams(0, 0, [3]).batches(np.array([10]), 10, 5)))
    assert (np.sort(everything, axis=2) == np.arange(10)).all()
    for size in (0, 11):
        with pytest.raises(ValueError, match=f"size = {size}"):
            next(AgentStreams(0, 0, [3]).batches(np.array([10]), size, 1))


def test_poisson_masks_hold_each_record_at_the_rate_on_its_own() -> None:
    steps = 4000
    masks = np.stack(list(AgentStreams(0, 0, [0, 1]).poisson_masks(np.array([4, 6]), np.array([0.3, 0.6]), steps)))
    assert masks.shape == (steps, 2, 6) and not masks[:, 0, 4:].any()
    for agent, n, rate in ((0, 4, 0.3), (1, 6, 0.6)):
        held = masks[:, agent, :n]
        np.testing.assert_allclose(held.mean(axis=0), rate, atol=0.04)
        sizes = np.bincount(held.sum(axis=1), minlength=n + 1)
        assert stats.chisquare(sizes, stats.binom(n, rate).pmf(np.arange(n + 1)) * steps).pvalue > 1e-3


def test_poisson_steps_sum_what_came_over_the_public_size() -> None:
    problem, w = Push(Euclidean(1)), np.zeros(1)
    trainer = DPRSGD(steps=1, batch=2, clip=9.0, noise=0, step_size=1.0, sampling="poisson")
    z = 2.0 ** np.arange(8) / 32
    for seed in range(20):
        (mask,) = AgentStreams(seed, 0, [0]).poisson_masks(np.array([8]), np.array([0.25]), 1)
        assert step_of(trainer, problem, w, z, seed)[0] == pytest.approx(z[mask[0]].sum() / 2)


@pytest.mark.parametrize("nominal", [10, None])
def test_poisson_batches_hold_as_many_records_as_the_stated_rate_says(nominal: Any) -> None:
    problem, w, agents, size = Push(Euclidean(1)), np.zeros(1), 1000, 3
    trainer = DPRSGD(steps=1, batch=size, clip=1.0, noise=1.0, step_size=1.0, sampling="poisson", nominal=nominal)
    counts = np.repeat([7, 14], agents)
    records = Records(np.ones((2 * agents, 14)), counts)
    # Every record in the batch moves the step by 1/size.
    steps = -replace(trainer, noise=0).train(problem, w, records, AgentStreams(2, 0, range(2 * agents)))[:, 0]
    for n in (7, 14):
        event = trainer.event(problem, n)
        assert isinstance(event, PoissonSampled) and event.rate == pytest.approx(size / (nominal or n))
        held = size * steps[counts == n].sum()
        spread = np.sqrt(agents * n * event.rate * (1 - event.rate))
        assert abs(held - agents * n * event.rate) < 4.5 * spread
        assert agents * n * event.rate / 4 > 9 * spread, "not enough records to tell a rate from 5/4 of it"


def test_streams_are_keyed_and_without_a_seed_fresh() -> None:
    first = stream(1, Role.NOISE, 2, 3).random(4)
    np.testing.assert_array_equal(stream(1, Role.NOISE, 2, 3).random(4), first)
    for other in (stream(2, Role.NOISE, 2, 3), stream(1, Role.BATCH, 2, 3), stream(1, Role.NOISE, 3, 3),
                  stream(1, Role.NOISE, 2, 4), stream(1, Role.NOISE, 3, 2)):  # fmt: skip
        assert not np.isin(other.random(4), first).any()
    assert not np.isin(stream(None, Role.NOISE, 2, 3).random(4), stream(None, Role.NOISE, 2, 3).random(4)).any()
