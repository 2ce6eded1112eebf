"""Methods to compare with: training in the ambient space, and input perturbation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import EVERY_MANIFOLD, near, unit_vectors
from test_matrix_completion import columns
from test_training import assert_scale, batches_of, releases

from pri_rfed.aggregation import ProjectedMean, TangentMean
from pri_rfed.data.agents import AgentArrays, Records
from pri_rfed.manifolds import Manifold, Sphere
from pri_rfed.manifolds.base import Array
from pri_rfed.privacy.audit import audit, canary
from pri_rfed.privacy.events import Gaussian, NonPrivate, Repeated, SampledWithoutReplacement, Unit
from pri_rfed.privacy.evidence import Claim, evidence
from pri_rfed.problems import FrechetMean, MatrixCompletion, PrincipalEigenvector, PrincipalSubspace, Problem
from pri_rfed.problems.ambient import Ambient
from pri_rfed.problems.clipping import clip
from pri_rfed.randomness import AgentStreams, Role
from pri_rfed.simulation import Budget, simulate
from pri_rfed.training import DPRSGD, TRAINERS, DPFedAvg, DPProjectedSGD, InputPerturbation, StepSize, Trainer

Setting = tuple[Problem, Array, AgentArrays]


def settings() -> list[Setting]:
    rng = np.random.default_rng(0)
    vectors = unit_vectors(rng, (3, 12, 6), np.linspace(2, 0.5, 6))
    found: list[Setting] = []
    for problem, records in (
        (PrincipalEigenvector(6), vectors),
        (PrincipalSubspace(6, 2), vectors),
        (PrincipalSubspace(6, 2, "stiefel"), vectors),
        (MatrixCompletion(6, 2), columns(rng, (3, 12), 6)),
    ):
        found.append((problem, problem.manifold.random_point(rng), AgentArrays(list(records))))
    return found


everywhere = pytest.mark.parametrize("setting", settings(), ids=lambda s: f"{s[0].name} {s[0].manifold}")
components = pytest.mark.parametrize("setting", settings()[:3], ids=lambda s: str(s[0].manifold))


def train(trainer: Trainer, setting: Setting, seed: int = 0, round: int = 0, agents: Any = (0, 1, 2)) -> Array:
    problem, w, data = setting
    return trainer.train(problem, w, data.records(np.asarray(agents)), AgentStreams(seed, round, list(agents)))


# In the ambient space -------------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("kind", [DPProjectedSGD, DPFedAvg])
@pytest.mark.parametrize("size", ["full", 4])
def test_without_noise_it_is_the_textbook_loop(
    setting: Setting, kind: type[DPProjectedSGD] | type[DPFedAvg], size: Any
) -> None:
    problem, w, data = setting
    around = Ambient(problem)
    trainer = kind(steps=5, batch=size, clip=0.6, noise=0, step_size=StepSize(0.2, "inverse", decay=2.0))
    uploads = train(trainer, setting, seed=3, round=2)
    clipped = 0
    for agent in range(3):
        x = w
        for k in range(5):
            z = data[agent] if size == "full" else batches_of(data, agent, 4, 5, seed=3, round=2)[k]
            g = around.gradient(np.broadcast_to(x, (len(z), *w.shape)), z)
            clipped += (around.manifold.norm(x, g) > 0.6).sum()
            x = x - 0.2 / (1 + k / 2) * clip(around.manifold, x, g, 0.6).mean(axis=0)
            if kind is DPProjectedSGD:
                x = problem.manifold.project_point(x)
        np.testing.assert_allclose(uploads[agent], x, rtol=1e-9, atol=1e-11)
    assert clipped > 10
    assert bool(problem.manifold.check_point(uploads)) is (kind is DPProjectedSGD)
    assert trainer.gradient_calls(12) == DPRSGD(steps=5, batch=size, noise=0).gradient_calls(12)


NOISE = 0.7
OF = {"clip": 0.4, "noise": NOISE, "step_size": 1e-4}
SCALES: list[tuple[dict[str, Any], float]] = [
    ({"steps": 1}, NOISE),
    ({"steps": 4, "batch": 2}, 2 * NOISE),
    ({"steps": 1, "noise_unit": "sensitivity"}, NOISE * 0.8 / 8),
    ({"steps": 4, "batch": 2, "noise_unit": "sensitivity"}, 2 * NOISE * 0.8 / 2),
    ({"steps": 1, "batch": 2, "sampling": "poisson", "noise_unit": "sensitivity"}, NOISE * 0.4 / 2),
]


@pytest.mark.parametrize(("options", "sigma"), SCALES)
def test_ambient_noise_has_its_scale_in_every_entry(options: dict[str, Any], sigma: float) -> None:
    agents, problem = 300, MatrixCompletion(6, 2)
    w = problem.manifold.random_point(np.random.default_rng(1))
    nothing = Records(np.zeros((agents, 8, 2, 6)), np.full(agents, 8))  # columns without an entry have no gradient
    streams = [AgentStreams(7, 0, range(agents)) for _ in range(2)]
    uploads = DPFedAvg(**OF | options).train(problem, w, nothing, streams[0])
    assert_scale((uploads - w) / 1e-4, sigma)
    # The projection takes the part along the fibres away; what is left is the tangent Gaussian.
    uploads = DPProjectedSGD(**OF | options).train(problem, w, nothing, streams[1])
    base = np.broadcast_to(w, uploads.shape)
    assert_scale(problem.manifold.coordinates(base, problem.manifold.log(base, uploads)) / 1e-4, sigma)


@pytest.mark.parametrize("kind", [DPProjectedSGD, DPFedAvg])
@pytest.mark.parametrize("size", ["full", 3])
def test_replacing_a_record_moves_an_ambient_step_by_the_stated_sensitivity_and_no_more(kind: Any, size: Any) -> None:
    problem, n = MatrixCompletion(6, 2, 1e-9), 7
    b = n if size == "full" else 3
    trainer = kind(steps=1, batch=size, clip=0.6, noise=1.0, step_size=1.0)
    ((stated, times),) = releases(trainer.event(problem, n))
    assert times == 1 and stated.unit is Unit.REPLACE_RECORD
    assert stated.sensitivity == pytest.approx(2 * 0.6 / b)
    w = np.eye(6, 2)
    # Columns whose residuals and coefficients make clipped gradients of opposite directions.
    one, other = (np.stack([[9.0, 0, sign * 9.0, 0, 0, 0], np.ones(6)]) for sign in (1, -1))
    rng = np.random.default_rng(2)
    worst = 0.0
    for seed in range(5):
        for place in range(n):
            for data in (np.tile(one, (n, 1, 1)), columns(rng, (n,), 6) * np.array([5.0, 1.0])[:, None]):
                changed = data.copy()
                changed[place] = other
                steps = []
                for z in (data, changed):
                    records = Records(z[None], np.array([n]))
                    batch = next(trainer._batches(records, AgentStreams(seed, 0, [0])))
                    around = trainer._around(problem)
                    steps.append(trainer._gradient(around).mean(w[None], *batch)[0])
                worst = max(worst, float(np.linalg.norm(steps[0] - steps[1])))
    assert worst == pytest.approx(stated.sensitivity, rel=1e-9)


def test_ambient_events() -> None:
    problem = MatrixCompletion(6, 2)
    for kind in (DPProjectedSGD, DPFedAvg):
        trainer = kind(steps=5, batch=10, clip=0.5, noise=0.3)
        sampled = SampledWithoutReplacement(Gaussian(0.1, 0.3), 10, 50)
        assert trainer.event(problem, 50) == Repeated(sampled, 5)
        assert isinstance(replace(trainer, noise=0).event(problem, 50), NonPrivate)
    # Principal components bound the gradients of what is projected, and of nothing else.
    for components, bound in ((PrincipalEigenvector(6), 2), (PrincipalSubspace(6, 3), 2 * np.sqrt(2))):
        assert DPProjectedSGD(noise=1.0).event(components, 10) == Gaussian(bound / 10, 1.0)
        assert DPProjectedSGD(noise=1.0).check(components, 10) == []
        assert "clip is needed" in DPFedAvg(noise=1.0).check(components, 10)[0]
    assert "clip is needed" in DPProjectedSGD(noise=1.0).check(problem, 10)[0]
    for kind in (DPProjectedSGD, DPFedAvg):
        assert "frechet-mean has none" in kind(noise=1.0, clip=1.0).check(FrechetMean(Sphere(3)), 10)[0]


# Input perturbation ---------------------------------------------------------------------------------------------------


@components
def test_without_noise_input_perturbation_finds_the_components(setting: Setting) -> None:
    problem, w, data = setting
    uploads = train(InputPerturbation(noise=0), setting)
    assert problem.manifold.check_point(uploads)
    for agent in range(3):
        best = problem.optimum(data[agent])
        assert problem.distance(uploads[agent], best) == pytest.approx(0, abs=1e-6)  # type: ignore[arg-type]
        # No other basis of the same span is nearer to the base point.
        frame, base = uploads[agent].reshape(6, -1), w.reshape(6, -1)
        for q in np.linalg.qr(np.random.default_rng(3).standard_normal((20, *(frame.shape[1],) * 2)))[0]:
            assert np.linalg.norm(frame - base) <= np.linalg.norm(frame @ q - base) + 1e-12
    assert isinstance(InputPerturbation(noise=0).event(problem, 12), NonPrivate)
    assert InputPerturbation(noise=0).gradient_calls(12) == 12


@pytest.mark.parametrize(("options", "sigma"), [({}, 0.3), ({"noise_unit": "sensitivity"}, 0.3 * np.sqrt(2) / 8)])
def test_the_noise_of_moments_is_isotropic_among_symmetric_matrices(options: Any, sigma: float) -> None:
    trainer = InputPerturbation(noise=0.3, **options)
    rng, z = np.random.default_rng(4), unit_vectors(np.random.default_rng(5), (8, 5))
    noise = np.stack([trainer.moments(z, rng) - z.T @ z / 8 for _ in range(400)])
    np.testing.assert_allclose(noise, np.swapaxes(noise, 1, 2), atol=1e-15)
    assert_scale(noise[:, range(5), range(5)], sigma)
    # Along an orthonormal basis of the matrices off the diagonal, too.
    upper = np.triu_indices(5, 1)
    assert_scale(np.sqrt(2) * noise[:, *upper], sigma)
    event = trainer.event(PrincipalEigenvector(5), 8)
    assert isinstance(event, Gaussian) and event.sigma == pytest.approx(sigma)
    assert event.sensitivity == np.sqrt(2) / 8 and event.unit is Unit.REPLACE_RECORD


def test_the_upload_is_made_of_the_noisy_moments_alone() -> None:
    problem, w, data = settings()[1]
    trainer = InputPerturbation(noise=0.2)
    uploads = train(trainer, (problem, w, data), seed=4, round=3)
    for agent in range(3):
        (rng,) = AgentStreams(4, 3, [agent]).generators(Role.NOISE)
        _, vectors = np.linalg.eigh(trainer.moments(data[agent], rng))
        assert problem.distance(uploads[agent], vectors[:, -2:]) == pytest.approx(0, abs=1e-6)
    assert np.abs(train(trainer, (problem, w, data), seed=5, round=3) - uploads).max() > 1e-3


def test_no_replacement_moves_the_moments_by_more_than_stated() -> None:
    rng = np.random.default_rng(6)
    trainer, n = InputPerturbation(noise=1.0), 10
    worst = 0.0
    for _ in range(300):
        z = unit_vectors(rng, (n, 3)) * rng.random((n, 1)) ** 0.2
        other = z.copy()
        other[0] = unit_vectors(rng, (3,))
        # The same noise for both.
        seeds = [np.random.default_rng(1) for _ in range(2)]
        moments = [trainer.moments(x, seed) for x, seed in zip((z, other), seeds, strict=True)]
        worst = max(worst, float(np.linalg.norm(moments[0] - moments[1])))
    assert 0.9 * trainer.sensitivity(n) < worst <= trainer.sensitivity(n) * (1 + 1e-12)
    z, other = np.tile(np.eye(3)[0], (n, 1)), np.tile(np.eye(3)[0], (n, 1))
    other[0] = np.eye(3)[1]
    silent = replace(trainer, noise=0)
    moved = np.linalg.norm(silent.moments(z, rng) - silent.moments(other, rng))
    assert moved == pytest.approx(trainer.sensitivity(n), rel=1e-12)


class _Longer(PrincipalEigenvector):
    """Records of norm up to 2."""

    gradient_bound = 4.0

    def check_records(self, z: Array) -> None:
        super().check_records(z / 2)


@pytest.mark.parametrize("trainer", [InputPerturbation(noise=1.0), DPProjectedSGD(noise=1.0), DPFedAvg(noise=1.0)])
def test_a_derived_problem_is_refused(trainer: Trainer) -> None:
    """Sensitivities that are proved for records of norm 1 must not be stated for longer ones."""
    assert trainer.check(_Longer(4), 5)[0].startswith("name = ")
    with pytest.raises(ValueError, match="is not defined around"):
        Ambient(_Longer(4))


def test_input_perturbation_is_for_principal_components() -> None:
    assert "second moments" in InputPerturbation(noise=1.0).check(FrechetMean(Sphere(3)), 5)[0]
    assert InputPerturbation(noise=1.0).check(PrincipalSubspace(4, 2), 5) == []
    with pytest.raises(ValueError, match=r"noise = -1.*noise_unit = 'percent'"):
        InputPerturbation(noise=-1, noise_unit="percent")  # type: ignore[arg-type]


# All of them ----------------------------------------------------------------------------------------------------------

TRAINERS_TO_TRY: list[Trainer] = [
    DPProjectedSGD(steps=4, batch=3, clip=0.5, noise=0.1, step_size=0.1),
    DPProjectedSGD(steps=4, clip=0.5, noise=0.1, step_size=0.1, sampling="poisson", noise_unit="sensitivity"),
    DPFedAvg(steps=4, batch=3, clip=0.5, noise=2.0, noise_unit="sensitivity", step_size=0.1),
    InputPerturbation(noise=0.1),
]


@components
@pytest.mark.parametrize("trainer", TRAINERS_TO_TRY, ids=lambda t: t.name)
def test_an_upload_depends_on_the_own_records_and_streams_alone(setting: Setting, trainer: Trainer) -> None:
    problem, w, data = setting
    setting = problem, w, AgentArrays([data[0][:7], data[1], data[2][:4]])
    together = train(trainer, setting, seed=5, round=4)
    order = [2, 0, 1]
    np.testing.assert_allclose(train(trainer, setting, 5, 4, order), together[order], rtol=1e-12, atol=1e-12)
    for agent in range(3):
        np.testing.assert_allclose(train(trainer, setting, 5, 4, [agent])[0], together[agent], rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(train(trainer, setting, 5, 4), together)
    for other in (train(trainer, setting, 6, 4), train(trainer, setting, 5, 5)):
        assert np.abs(other - together).max() > 1e-6


@pytest.mark.parametrize(
    ("trainer", "least"),
    [
        (DPProjectedSGD(steps=3, clip=0.7, noise=2.0, noise_unit="sensitivity", step_size=1e-3), 0.4),
        (DPProjectedSGD(steps=1, noise=1.0, noise_unit="sensitivity", step_size=1e-3), 0.6),
        (DPFedAvg(steps=3, clip=0.7, noise=2.0, noise_unit="sensitivity", step_size=1e-4), 0.4),
        (InputPerturbation(noise=0.2, noise_unit="sensitivity"), 0.01),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_audit_does_not_refute_them(trainer: Trainer, least: float) -> None:
    found = audit(canary(trainer, PrincipalEigenvector(4), 6), repetitions=4000, confidence=0.99, seed=1).evidence
    assert not found.refuted, found
    assert found.ratio >= least, found


@pytest.mark.parametrize("kind", [DPProjectedSGD, DPFedAvg])
def test_the_audit_refutes_a_noise_that_is_half_of_what_is_stated(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = kind(steps=1, clip=0.7, noise=1.0, noise_unit="sensitivity", step_size=1e-3)
    correct = kind._sigma
    monkeypatch.setattr(kind, "_sigma", lambda self, problem, records: correct(self, problem, records) / 2)
    assert audit(canary(trainer, PrincipalEigenvector(4), 6), repetitions=4000, seed=1).evidence.refuted


@pytest.mark.parametrize(("share", "refuted"), [(1.0, False), (2 / 3, True)])
def test_the_moments_lose_nearly_what_is_claimed_and_with_less_noise_more(share: float, refuted: bool) -> None:
    trainer, n = InputPerturbation(noise=1.0, noise_unit="sensitivity"), 6
    z = np.tile(np.eye(3)[0], (n, 1))
    other = z.copy()
    other[0] = np.eye(3)[1]
    apart = (z.T @ z - other.T @ other) / n
    seen, rng = [], np.random.default_rng(10)
    for data in (z, other):
        clean = data.T @ data / n
        noise = [trainer.moments(data, rng) - clean for _ in range(6000)]
        seen.append(np.array([[np.sum((clean + share * e) * apart)] for e in noise]) / np.linalg.norm(apart))
    found = evidence(seen[0], seen[1], Claim(trainer.event(PrincipalEigenvector(3), n)), 1e-5, 0.99)
    assert found.refuted is refuted and found.ratio > 0.8, found


def test_the_registry_holds_them() -> None:
    for trainer in (DPProjectedSGD, DPFedAvg, InputPerturbation):
        assert TRAINERS[trainer.name] is trainer


# With a server --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("manifold", EVERY_MANIFOLD, ids=str)
def test_the_projected_mean_by_the_formula(manifold: Manifold) -> None:
    rng = np.random.default_rng(7)
    base = manifold.random_point(rng)
    uploads = near(manifold, base, rng, (4,), 0.9)
    counts = np.array([1, 2, 3, 4])
    for rule, p in ((ProjectedMean(), counts / 10), (ProjectedMean("equal"), np.full(4, 0.25))):
        out = rule.aggregate(manifold, base, range(4), uploads, counts, rng)
        expected = manifold.project_point(np.tensordot(p, uploads, axes=1))
        np.testing.assert_allclose(out.point, expected, rtol=1e-10, atol=1e-12)
        assert out.refused == () and out.info == {"projected": True} and manifold.check_point(out.point)


def test_the_projected_mean_takes_what_is_around_and_refuses_what_is_no_array() -> None:
    rng = np.random.default_rng(8)
    base = np.array([1.0, 0, 0])
    uploads = [[0.0, 3, 0], np.full(3, np.nan), np.ones(2), [4.0, 0, 0]]
    out = ProjectedMean().aggregate(Sphere(3), base, range(4), uploads, [10] * 4, rng)  # type: ignore[arg-type]
    np.testing.assert_allclose(out.point, [0.8, 0.6, 0])
    assert [refusal.agent for refusal in out.refused] == [1, 2]
    out = ProjectedMean().aggregate(Sphere(3), base, range(2), [base, -base], [10] * 2, rng)
    np.testing.assert_array_equal(out.point, base)
    assert out.info == {"projected": False}


def run(trainer: Trainer, **options: Any) -> float:
    rng = np.random.default_rng(9)
    problem = PrincipalEigenvector(8)
    agents = list(unit_vectors(rng, (10, 60, 8), np.linspace(3, 0.5, 8)))
    found = simulate(problem, agents, trainer, rounds=8, evaluate_every=8, seed=3, **options)
    assert problem.manifold.check_point(found.point)
    return found.history[-1]["excess_risk"]


def test_federations_with_each_of_them_learn() -> None:
    budget = Budget(8.0)
    averaging = DPFedAvg(steps=3, clip=1.0, noise=1.0, step_size=0.3)
    assert run(averaging, aggregation=ProjectedMean(), budget=budget) < 0.05
    assert run(DPProjectedSGD(steps=3, noise=1.0, step_size=0.3), budget=budget) < 0.05
    assert run(InputPerturbation(noise=1.0), budget=budget, aggregation=TangentMean()) < 0.1
    exact = replace(averaging, clip=None, noise=0)
    assert run(exact, aggregation=ProjectedMean()) < 0.05


def test_uploads_around_the_manifold_need_a_server_that_takes_them() -> None:
    with pytest.raises(ValueError, match=r"aggregation tangent-mean .* dp-fedavg uploads others, which projected-mean"):
        run(DPFedAvg(steps=3, clip=1.0, noise=1.0))
