"""Records that are held in single precision: half the memory, the same guarantee."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from numpy.typing import NDArray

from pri_rfed import simulate
from pri_rfed.data.agents import AgentArrays, stored
from pri_rfed.data.download import DataFolders
from pri_rfed.experiment.config import ConfigError, Experiment, check, load
from pri_rfed.experiment.memory import Memory
from pri_rfed.manifolds import Euclidean
from pri_rfed.manifolds.base import Array
from pri_rfed.owners import make_owners
from pri_rfed.participant import Participant
from pri_rfed.policy import load_policies
from pri_rfed.problems import PROBLEMS, FrechetMean, MatrixCompletion, PrincipalEigenvector, Problem
from pri_rfed.problems.clipping import ClippedGradient
from pri_rfed.simulation import Evaluation
from pri_rfed.training import DPRSGD, RSGD, RSVRG, Trainer
from pri_rfed.training.input_perturbation import InputPerturbation
from pri_rfed.training.svrg import RFedSVRG
from pri_rfed.wire import Plan

DIM = 20
PROBLEM = PrincipalEigenvector(DIM)
NOISY = DPRSGD(steps=3, noise=0.01, step_size=0.3)
START = np.eye(DIM)[0]


def unit_vectors(*shape: int, seed: int = 0) -> Array:
    """About a direction, so that there is something to find."""
    z = np.random.default_rng(seed).standard_normal((*shape, DIM)) + 3 * np.eye(DIM)[1]
    return z / np.linalg.norm(z, axis=-1, keepdims=True)


def agents(sizes: tuple[int, ...] = (30,) * 6) -> list[Array]:
    return [unit_vectors(n, seed=i) for i, n in enumerate(sizes)]


def tables(**changes: dict[str, Any]) -> dict[str, Any]:
    base: dict[str, dict[str, Any]] = {
        "run": {"name": "a", "rounds": 2},
        "problem": {"name": "principal-eigenvector"},
        "data": {"source": "digits", "partition": {"name": "iid", "agents": 5}},
        "trainer": {"name": "dp-rsgd", "noise": 1.0, "noise_unit": "sensitivity"},
    }
    return {section: base[section] | changes.get(section, {}) for section in base}


def made(**changes: dict[str, Any]) -> Experiment:
    return load(tables(**changes), DataFolders())


# Rounding -----------------------------------------------------------------------------------------------------------


def test_rounding_moves_towards_zero_by_less_than_the_stated_error() -> None:
    rng = np.random.default_rng(0)
    x = rng.choice([-1, 1], 100_000) * np.exp2(rng.uniform(-140, 127, 100_000))
    rounded = stored(x, "float32")
    assert rounded.dtype == np.float32
    lost = np.abs(x) - np.abs(rounded.astype(float))
    assert (lost >= 0).all() and (np.sign(rounded) == np.sign(x)).all()
    assert (lost < np.maximum(np.abs(x) * 2.0**-23, 2.0**-149)).all()
    nearest = np.abs(x.astype(np.float32).astype(float))
    assert 0.4 < np.mean(nearest > np.abs(x)) < 0.6, "rounding to the nearest makes every second number larger"


def test_what_is_representable_stays_and_nothing_becomes_infinite() -> None:
    largest = float(np.finfo(np.float32).max)
    x = np.array([0.0, 1.0, -0.5, 3.0, 1e300, -1e300, 1e-60, np.inf, np.nan])
    expected = [0.0, 1.0, -0.5, 3.0, largest, -largest, 0.0, np.inf, np.nan]
    np.testing.assert_array_equal(stored(x, "float32"), np.array(expected, dtype=np.float32))
    once = stored(unit_vectors(50), "float32")
    np.testing.assert_array_equal(stored(once, "float32"), once)
    np.testing.assert_array_equal(stored(once.astype(float), "float32"), once)
    double = unit_vectors(5)
    assert stored(double, "float64") is double


def test_records_of_norm_1_keep_to_it_where_the_nearest_numbers_would_not() -> None:
    z = unit_vectors(2000)
    z[0], z[1] = np.eye(DIM)[3], np.full(DIM, DIM**-0.5)
    held = AgentArrays([z], precision="float32")[0]
    for was, is_ in zip(z, held, strict=True):
        assert math.fsum(is_**2) <= math.fsum(was**2)
    assert PROBLEM.prepare_records(held) is held
    assert np.linalg.norm(PROBLEM.gradient(START, held), axis=1).max() <= 1 + 1e-15
    with pytest.raises(ValueError, match=r"norm 1, above 1"):
        PROBLEM.check_records(z.astype(np.float32).astype(float))


# What computes ------------------------------------------------------------------------------------------------------


class Watched(PrincipalEigenvector):
    """Notes in which precision it is given records. `optimum` alone may see them as they are held."""

    def __init__(self, n: int):
        super().__init__(n)
        self.seen: dict[str, set[np.dtype[Any]]] = {}

    def _note(self, where: str, z: NDArray[Any]) -> None:
        self.seen.setdefault(where, set()).add(z.dtype)

    def loss(self, w: Array, z: Array) -> Array:
        self._note("loss", z)
        return super().loss(w, z)

    def gradient(self, w: Array, z: Array) -> Array:
        self._note("gradient", z)
        return super().gradient(w, z)

    def check_records(self, z: Array) -> None:
        self._note("check", z)
        super().check_records(z)

    def prepare_records(self, z: Array) -> Array:
        self._note("prepare", z)
        return super().prepare_records(z)

    def clipped_mean(self, w: Array, z: Array, clip: Any, mask: Any, size: Array) -> Array:
        self._note("mean", z)
        return super().clipped_mean(w, z, clip, mask, size)


TRAINERS: list[Trainer] = [
    NOISY,
    DPRSGD(steps=3, batch=4, noise=0.01, clip=0.5),
    DPRSGD(steps=3, batch=4, noise=0.01, sampling="poisson"),
    RSGD(steps=2),
    RSVRG(epochs=2, inner_steps=2, batch=3),
    RFedSVRG(inner_steps=2),
]


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda t: f"{t.name}-{t.batch}")
@pytest.mark.parametrize("sizes", [(30,) * 6, (7, 30, 12, 30, 9, 8)], ids=["equal", "unequal"])
def test_everything_is_computed_in_double_precision(trainer: Trainer, sizes: tuple[int, ...]) -> None:
    watched = Watched(DIM)
    held = AgentArrays(agents(sizes), precision="float32")
    for sampled in (6, 3):
        simulate(watched, held, trainer, rounds=3, sampled=sampled)
    assert {"loss", "gradient", "check", "prepare", "mean"} == set(watched.seen)
    assert set.union(*watched.seen.values()) == {np.dtype(np.float64)}


@pytest.mark.parametrize("trainer", [*TRAINERS, InputPerturbation(noise=0.01)], ids=lambda t: t.name)
@pytest.mark.parametrize("sizes", [(30,) * 6, (7, 30, 12, 30, 9, 8)], ids=["equal", "unequal"])
def test_a_run_is_that_of_the_rounded_records_in_double_precision(trainer: Trainer, sizes: tuple[int, ...]) -> None:
    held = AgentArrays(agents(sizes), precision="float32")
    rounded = AgentArrays([held[i] for i in range(len(held))])
    single, double, unrounded = (
        simulate(PROBLEM, data, trainer, rounds=3, sampled=4) for data in (held, rounded, agents(sizes))
    )
    np.testing.assert_array_equal(single.point, double.point)
    np.testing.assert_allclose(single.point, unrounded.point, atol=1e-6)
    for a, b in zip(single.history, double.history, strict=True):
        for figure in ("cost", "excess_risk", "distance", "gradient_norm"):
            assert a[figure] == pytest.approx(b[figure], rel=1e-9, abs=1e-12)
    assert single.privacy.to_dict() == unrounded.privacy.to_dict()


def sum_in_single_precision(w: Array, z: Array) -> Array:
    """The sum of the gradients of PROBLEM, one record after the other, all of it in single precision."""
    w32, z32 = w.astype(np.float32), z.astype(np.float32)
    s = (z32 * w32).sum(axis=1)[:, None]
    total = np.cumsum(-2 * (z32 - s * w32) * s, axis=0, dtype=np.float32)[-1]
    assert total.dtype == np.float32
    return total.astype(float)


@pytest.mark.parametrize("clip", [None, 0.25])
def test_one_record_moves_the_mean_by_no_more_than_the_sensitivity(clip: float | None) -> None:
    """Records whose gradients are as long as can be and point the same way, and one of them the opposite way in a
    neighbour. Sums in single precision err by more than the little that is left to the bound, so this tells."""
    n, rng = 5000, np.random.default_rng(0)
    bound = 1.0 if clip is None else clip
    ours, single = [], []
    for _ in range(20):
        angle = math.pi / 4 + 0.2 * rng.uniform(-1, 1, n)
        angle[0] = math.pi / 4
        z = np.outer(np.cos(angle), np.eye(DIM)[0]) + np.outer(np.sin(angle), np.eye(DIM)[1])
        other = z.copy()
        other[0, 1] *= -1
        pair = AgentArrays([z, other], precision="float32").records(np.arange(2))
        at, size = np.stack([START, START]), np.full(2, float(n))
        mean = ClippedGradient(PROBLEM, clip).mean(at, pair.values, None, size)
        plain = Problem.clipped_mean(PROBLEM, at, pair.values, clip, None, size)  # record by record
        for found in (mean, plain):
            ours.append(float(np.linalg.norm(found[0] - found[1])))
        sums = [sum_in_single_precision(START, records) for records in pair.values]
        single.append(float(np.linalg.norm(sums[0] - sums[1])) / n)
    assert max(ours) <= 2 * bound / n * (1 + 1e-9)
    assert max(ours) > 2 * bound / n * (1 - 1e-6), "the bound is reached"
    assert max(single) > 2 / n * (1 + 1e-5), "sums in single precision would break it"


def test_diagnostics_are_those_of_the_rounded_records() -> None:
    for sizes in ((30,) * 6, (7, 30, 12, 30, 9, 8)):
        held = AgentArrays(agents(sizes), precision="float32")
        rounded = AgentArrays([held[i] for i in range(len(held))])
        single, double = Evaluation(PROBLEM, held)(START), Evaluation(PROBLEM, rounded)(START)
        for figure, value in double.items():
            assert single[figure] == pytest.approx(value, rel=1e-12)  # type: ignore[literal-required]


# Memory -------------------------------------------------------------------------------------------------------------


def test_it_takes_half_the_memory_and_hands_out_double_precision() -> None:
    for sizes in ((30,) * 6, (7, 30, 12, 30, 9, 8)):
        double, single = (AgentArrays(agents(sizes), precision=p) for p in ("float64", "float32"))
        assert single.nbytes * 2 == double.nbytes == sum(sizes) * DIM * 8
        assert single.all_stored().dtype == np.float32
        records = single.records(np.array([1, 2]))
        assert records.stored.dtype == np.float32
        for handed in (single[2], single.all_records(), records.values, records.take(np.zeros((2, 3), dtype=np.int64))):
            assert handed.dtype == np.float64
        np.testing.assert_array_equal(records.values[1, : sizes[2]], single[2])
        np.testing.assert_array_equal(records.take(np.array([[3], [4]]))[1, 0], single[2][4])
        np.testing.assert_allclose(single.all_records(), double.all_records(), rtol=2.0**-23)


def test_agents_may_be_made_one_after_the_other() -> None:
    one_by_one = AgentArrays(iter(agents()), precision="float32")
    np.testing.assert_array_equal(one_by_one.all_records(), AgentArrays(agents(), precision="float32").all_records())
    with pytest.raises(ValueError, match="at least one agent"):
        AgentArrays(iter([]))
    with pytest.raises(ValueError, match=r"precision = 'float16' must be 'float64' or 'float32'"):
        AgentArrays(agents(), precision="float16")  # type: ignore[arg-type]


def test_few_records_are_in_double_precision_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the agents at a time, whose records are copied; the run is the same."""
    expected = simulate(PROBLEM, AgentArrays(agents(), precision="float32"), NOISY, rounds=2)
    monkeypatch.setattr("pri_rfed.simulation._NUMBERS_IN_CACHE", 2 * 30 * DIM)
    monkeypatch.setattr("pri_rfed.data.agents._NUMBERS_AT_ONCE", 2 * 30 * DIM)
    largest = 0

    class Measured(Watched):
        def _note(self, where: str, z: NDArray[Any]) -> None:
            nonlocal largest
            largest = max(largest, z.size)

    parts = simulate(Measured(DIM), AgentArrays(agents(), precision="float32"), NOISY, rounds=2)
    np.testing.assert_allclose(parts.point, expected.point, atol=1e-12)
    assert largest == 2 * 30 * DIM


# Refusals -----------------------------------------------------------------------------------------------------------


def test_problems_that_assume_more_of_a_record_are_refused() -> None:
    assert {name for name, problem in PROBLEMS.items() if problem.single_precision} == {
        "principal-eigenvector", "principal-subspace", "matrix-completion",
    }  # fmt: skip
    ball = FrechetMean(Euclidean(DIM), center=np.zeros(DIM), radius=1.0)
    with pytest.raises(ValueError, match=r"agents: precision = 'float32': the records of frechet-mean .* 'float64'"):
        simulate(ball, AgentArrays(agents(), precision="float32"), NOISY, rounds=1)
    changes: dict[str, dict[str, Any]] = {
        "problem": {"name": "frechet-mean", "manifold": "sphere"},
        "data": {"source": "synthetic-ball", "records": 50, "precision": "float32"},
        "trainer": {"clip": 1.0},
    }
    expected = [
        "data.precision = 'float32': the records of frechet-mean do not stay what they have to be when their numbers "
        "are rounded; must be 'float64'"
    ]
    with pytest.raises(ConfigError) as error:
        made(**changes)
    assert error.value.errors == check(tables(**changes)) == expected, "with the data and without"
    assert check(tables(**changes | {"data": changes["data"] | {"precision": "float64"}})) == []


class Normalised(PrincipalEigenvector):
    """Takes only records of norm 1, so nearly that rounding shows; or makes them so."""

    def __init__(self, n: int, prepares: bool):
        super().__init__(n)
        self.prepares = prepares

    def check_records(self, z: Array) -> None:
        super().check_records(z)
        if np.any(np.abs(np.linalg.norm(z, axis=-1) - 1) > 1e-12):
            raise ValueError("not of norm 1")

    def prepare_records(self, z: Array) -> Array:
        return z / np.linalg.norm(z, axis=-1, keepdims=True) if self.prepares else super().prepare_records(z)


@pytest.mark.parametrize("prepares", [False, True])
def test_what_was_rounded_is_checked(prepares: bool) -> None:
    """Before the problem prepares it as well as after."""
    strict = Normalised(DIM, prepares)
    AgentArrays(agents()).prepared(strict)
    with pytest.raises(ValueError, match=r"agent 0 \(0\): not of norm 1"):
        AgentArrays(agents(), precision="float32").prepared(strict)


def test_a_record_that_is_altered_is_rounded_again() -> None:
    z = agents()
    z[2][4] *= 1 + 5e-10  # scaled back to norm 1
    held = AgentArrays(z, precision="float32")
    prepared = held.prepared(PROBLEM)
    again = prepared.prepared(PROBLEM)
    assert prepared.precision == "float32" and again is prepared
    assert np.linalg.norm(prepared.all_records(), axis=1).max() <= 1 + 1e-15
    np.testing.assert_array_equal(prepared[1], held[1])


def test_matrix_completion_keeps_zeros_and_ones() -> None:
    rng = np.random.default_rng(0)
    observed = rng.random((5, 40, 8)) < 0.5
    z = np.stack([rng.standard_normal((5, 40, 8)) * observed, observed], axis=2)
    problem, trainer = MatrixCompletion(8, 2), DPRSGD(steps=3, noise=0.01, clip=1.0)
    single, double = (simulate(problem, AgentArrays(z, precision=p), trainer, rounds=2) for p in ("float32", "float64"))
    np.testing.assert_array_equal(AgentArrays(z, precision="float32").all_records()[:, 1], z.reshape(-1, 2, 8)[:, 1])
    np.testing.assert_allclose(single.point, double.point, atol=1e-6)


# Configurations -----------------------------------------------------------------------------------------------------


def test_a_configuration_says_it() -> None:
    assert made().resolved["data"]["precision"] == "float64" == made().agents.precision  # type: ignore[union-attr]
    experiment = made(data={"precision": "float32"})
    assert isinstance(experiment.agents, AgentArrays)
    assert experiment.agents.precision == experiment.resolved["data"]["precision"] == "float32"
    again = load(experiment.resolved, DataFolders())
    assert isinstance(again.agents, AgentArrays) and again.resolved == experiment.resolved
    np.testing.assert_array_equal(again.agents.all_records(), experiment.agents.all_records())


def test_a_configuration_that_is_wrong() -> None:
    for precision, wrong in (("float16", '"float16"'), (32, "32")):
        with pytest.raises(ConfigError) as error:
            made(data={"precision": precision})
        assert error.value.errors == [f'data.precision = {wrong}: must be "float64" or "float32"']
    with pytest.raises(ConfigError, match=r"data.precison: unknown key; did you mean precision\?"):
        made(data={"precison": "float32"})


def test_points_of_a_sweep_do_not_share_what_they_hold_in_different_precision() -> None:
    memory = Memory()
    held = []
    for precision in ("float64", "float32", "float64"):
        experiment = load(tables(data={"precision": precision}), DataFolders(), memory)
        assert isinstance(experiment.agents, AgentArrays)
        held.append(experiment.agents)
    assert held[0] is held[2] and [h.precision for h in held] == ["float64", "float32", "float64"]


# Owners -------------------------------------------------------------------------------------------------------------


def test_an_owner_decides_and_a_rehearsal_is_the_simulation(tmp_path: Path) -> None:
    trainer = DPRSGD(steps=3, noise=2.0, noise_unit="sensitivity", step_size=0.1)
    held = AgentArrays(agents((30, 20)), precision="float32")
    expected = simulate(PROBLEM, held, trainer, rounds=1, start=START, seed=4)
    table, plan_table = {"name": "principal-eigenvector"}, {"name": "dp-rsgd", "steps": 3, "noise": 2.0}
    make_owners(tmp_path, PROBLEM, table, held, trainer, releases=3, delta=1e-5, seed=4, clients=1)
    home = tmp_path / "client-0"
    assert np.load(home / "agent-0.npy").dtype == np.float32
    plan_table |= {"noise_unit": "sensitivity", "step_size": 0.1}
    uploads = []
    for policy, n in zip(load_policies(home), (30, 20), strict=True):
        assert policy.precision == "float32"
        participant = Participant(policy)
        plan = Plan("run", 0, 0, table, plan_table, START, {policy.agent: n})
        uploads.append(participant.train(plan))
        _, own = participant._problem(plan)
        assert own.stored.dtype == np.float32
    sphere = PROBLEM.manifold
    mean = sphere.exp(START, 0.6 * sphere.log(START, uploads[0]) + 0.4 * sphere.log(START, uploads[1]))
    np.testing.assert_allclose(mean, expected.point, atol=1e-12)


def test_an_owner_is_told_at_once_that_a_problem_does_not_take_it(tmp_path: Path) -> None:
    make_owners(
        tmp_path, PROBLEM, {"name": "principal-eigenvector"}, AgentArrays(agents((30,))),
        DPRSGD(noise=2.0), releases=1, delta=1e-5, seed=0, clients=1,
    )  # fmt: skip
    path = tmp_path / "client-0" / "agent-0.toml"
    policy = load_policies(path)[0]
    assert policy.precision == "float64"
    table = policy.model_dump(mode="json", exclude_none=True) | {"precision": "float32"}
    table["problems"] = [{"name": "frechet-mean", "manifold": "euclidean"}]
    path.write_text(tomli_w.dumps(table), encoding="utf-8")
    with pytest.raises(ValueError, match=r"precision = 'float32': the records of frechet-mean"):
        Participant(load_policies(path)[0])
    path.write_text(tomli_w.dumps(table | {"precision": "half"}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"precision: Input should be 'float64' or 'float32'"):
        load_policies(path)
