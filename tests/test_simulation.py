"""Whole runs: reproducible, resumable, robust, and right where there is no noise."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import near, unit_vectors
from numpy.typing import NDArray

import pri_rfed
from pri_rfed.aggregation import AgentLevelMean, FrechetMeanAggregation, TangentMean
from pri_rfed.coordinator import Coordinator, State, sample_agents, start_point
from pri_rfed.data.agents import AgentArrays, Records, agents_by_size, most_by_size
from pri_rfed.manifolds.base import Array
from pri_rfed.manifolds.euclidean import Euclidean
from pri_rfed.manifolds.hyperboloid import Hyperboloid
from pri_rfed.manifolds.spd import SPDAffineInvariant
from pri_rfed.manifolds.sphere import Sphere
from pri_rfed.privacy.events import Composed, Participation, Repeated, repeat
from pri_rfed.problems import FrechetMean, PrincipalEigenvector, PrincipalSubspace, Problem
from pri_rfed.randomness import AgentStreams
from pri_rfed.simulation import Budget, Result, simulate, train_agents
from pri_rfed.training import DPRSGD, DPRSVRG, RGD, RSVRG, RFedSVRG

EIGENVECTOR = PrincipalEigenvector(6)
NOISY = DPRSGD(steps=3, batch=4, clip=1.0, noise=0.05, step_size=0.3)


def vectors(agents: int = 6, records: int = 20, seed: int = 1) -> AgentArrays:
    rng = np.random.default_rng(seed)
    return AgentArrays(list(unit_vectors(rng, (agents, records, 6), np.array([2.0, 1.0, 0.7, 0.6, 0.5, 0.4]))))


def matrices(agents: int = 5, records: int = 12) -> tuple[FrechetMean, AgentArrays]:
    rng = np.random.default_rng(2)
    manifold = SPDAffineInvariant(3)
    return FrechetMean(manifold), AgentArrays(list(near(manifold, np.eye(3), rng, (agents, records), 1.5)))


def comparable(history: Any) -> list[dict[str, Any]]:
    """What a run records, but for the time it took."""
    return [{key: value for key, value in record.items() if key != "seconds"} for record in history]


def assert_same(a: Result, b: Result) -> None:
    np.testing.assert_array_equal(a.point, b.point)
    np.testing.assert_array_equal(a.participations, b.participations)
    assert comparable(a.history) == comparable(b.history)


# What a run is --------------------------------------------------------------------------------------------------------


def test_a_run_is_the_published_loop() -> None:
    agents = AgentArrays([vectors()[i][: 10 + 2 * i] for i in range(6)])
    result = simulate(EIGENVECTOR, agents, NOISY, rounds=4, sampled=3, seed=9)
    sphere, w = EIGENVECTOR.manifold, start_point(EIGENVECTOR, 9)
    took_part = np.zeros(6, dtype=int)
    for t in range(4):
        chosen = sample_agents(9, t, 3, 6)
        took_part[chosen] += 1
        v = np.zeros(6)
        for i in chosen:
            records = Records(agents[i][None], np.array([len(agents[i])]))
            upload = NOISY.train(EIGENVECTOR, w, records, AgentStreams(9, t, [i]))[0]
            v += len(agents[i]) / sum(len(agents[j]) for j in chosen) * sphere.log(w, upload)
        w = sphere.exp(w, v)
        record = result.history[t]
        assert (record["round"], record["sampled"], record["refused"]) == (t + 1, chosen.tolist(), [])
        everyone = agents.all_records()
        assert record["cost"] == pytest.approx(EIGENVECTOR.loss(w, everyone).mean(), rel=1e-12)
        gradient = EIGENVECTOR.gradient(w, everyone).mean(axis=0)
        assert record["gradient_norm"] == pytest.approx(float(sphere.norm(w, gradient)), rel=1e-9)
        best = EIGENVECTOR.optimum(everyone)
        assert record["excess_risk"] == pytest.approx(
            record["cost"] - EIGENVECTOR.loss(best, everyone).mean(), abs=1e-14
        )
        assert record["distance"] == pytest.approx(float(min(sphere.dist(w, best), sphere.dist(w, -best))), rel=1e-9)
    np.testing.assert_allclose(result.point, w, rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(result.participations, took_part)
    assert result.local_events == {n: NOISY.event(EIGENVECTOR, n) for n in agents.counts.tolist()}


def test_the_servers_choice_is_uniform_sorted_and_without_repetition() -> None:
    chosen = np.stack([sample_agents(3, t, 2, 5) for t in range(4000)])
    assert (chosen[:, 0] < chosen[:, 1]).all()
    pairs = np.unique(chosen, axis=0, return_counts=True)[1]
    assert len(pairs) == 10 and np.abs(pairs - 400).max() < 5 * np.sqrt(400)
    np.testing.assert_array_equal(sample_agents(3, 0, 5, 5), np.arange(5))


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    first, again, other = (
        simulate(EIGENVECTOR, vectors(), NOISY, rounds=3, sampled=4, seed=seed) for seed in (5, 5, 6)
    )
    assert_same(first, again)
    assert np.abs(first.point - other.point).max() > 1e-3


def test_data_may_be_a_list_or_made_on_demand() -> None:
    data = AgentArrays([vectors()[i][: 8 + i] for i in range(6)])

    class OnDemand:
        counts = data.counts

        def records(self, agents: Any) -> Records:
            return data.records(agents)

    runs = [
        simulate(EIGENVECTOR, agents, NOISY, rounds=3, sampled=4)
        for agents in (data, [data[i] for i in range(6)], OnDemand())
    ]
    assert_same(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0].point, runs[2].point)
    for a, b in zip(runs[0].history, runs[2].history, strict=True):
        assert a["cost"] == pytest.approx(b["cost"], rel=1e-12)
        assert a["gradient_norm"] == pytest.approx(b["gradient_norm"], rel=1e-9)
        assert "excess_risk" not in b


def test_memory_is_bounded_without_changing_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = simulate(EIGENVECTOR, vectors(), NOISY, rounds=3, sampled=5)
    exchanging = simulate(EIGENVECTOR, vectors(), RFedSVRG(inner_steps=2), rounds=3, sampled=5)
    monkeypatch.setattr("pri_rfed.simulation._NUMBERS_AT_ONCE", 250)
    for trainer, expected in ((NOISY, whole), (RFedSVRG(inner_steps=2), exchanging)):
        parts = simulate(EIGENVECTOR, vectors(), trainer, rounds=3, sampled=5)
        np.testing.assert_allclose(parts.point, expected.point, rtol=1e-12, atol=1e-12)
        assert parts.history[-1]["cost"] == pytest.approx(expected.history[-1]["cost"], rel=1e-12)


def test_a_uniform_output_is_a_point_that_a_round_began_with() -> None:
    points: list[Array] = []
    plain = simulate(EIGENVECTOR, vectors(), NOISY, rounds=6, seed=3, on_round=lambda state: points.append(state.point))
    points.insert(0, start_point(EIGENVECTOR, 3))
    drawn = simulate(EIGENVECTOR, vectors(), NOISY, rounds=6, seed=3, output="uniform")
    assert comparable(drawn.history) == comparable(plain.history)
    # The index does not depend on data.
    states: list[State] = []
    for data in (vectors(seed=1), vectors(seed=2)):
        simulate(EIGENVECTOR, data, NOISY, rounds=6, seed=3, output="uniform", on_round=states.append)
    assert [s.drawn is None for s in states[:6]] == [s.drawn is None for s in states[6:]]
    index = [s.drawn is None for s in states[:6]].index(False)
    np.testing.assert_array_equal(drawn.point, points[index])
    indices = {
        next(s.round for s in run if s.drawn is not None)
        for seed in range(30)
        for run in [_states(rounds=4, seed=seed, output="uniform")]
    }
    assert indices == {1, 2, 3, 4}


def _states(**options: Any) -> list[State]:
    states: list[State] = []
    simulate(EIGENVECTOR, vectors(2, 5), NOISY, evaluate_every=0, on_round=states.append, **options)
    return states


def test_diagnostics_are_computed_when_asked_for() -> None:
    histories = [
        simulate(EIGENVECTOR, vectors(), NOISY, rounds=5, evaluate_every=every).history for every in (0, 1, 2)
    ]
    assert [["cost" in record for record in history] for history in histories] == [
        [False] * 5, [True] * 5, [False, True, False, True, True],
    ]  # fmt: skip
    json.dumps(histories)


# Interruption ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["last", "uniform"])
@pytest.mark.parametrize("stop", [1, 3, 5])
def test_an_interrupted_run_resumes_to_the_identical_result(tmp_path: Path, output: Any, stop: int) -> None:
    options: dict[str, Any] = {"rounds": 5, "sampled": 3, "seed": 4, "output": output}
    trainer = replace(NOISY, output="uniform")
    whole = simulate(EIGENVECTOR, vectors(), trainer, **options)
    path = tmp_path / "state.npz"

    def save_and_interrupt(state: State) -> None:
        state.save(path)
        if state.round == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(EIGENVECTOR, vectors(), trainer, on_round=save_and_interrupt, **options)
    state = State.load(path)
    assert state.round == stop and len(state.history) == stop
    resumed = simulate(EIGENVECTOR, vectors(), trainer, resume_from=state, **options)
    assert_same(resumed, whole)
    assert resumed.history[:stop] == state.history
    assert [p.name for p in tmp_path.iterdir()] == ["state.npz"]


def test_a_run_can_be_prolonged() -> None:
    states: list[State] = []
    simulate(EIGENVECTOR, vectors(), NOISY, rounds=2, on_round=states.append)
    assert_same(
        simulate(EIGENVECTOR, vectors(), NOISY, rounds=5, resume_from=states[-1]),
        simulate(EIGENVECTOR, vectors(), NOISY, rounds=5),
    )


def test_the_ledger_figure_is_that_of_the_busiest_agent() -> None:
    from pri_rfed.privacy.accountants import best_epsilon

    result = simulate(EIGENVECTOR, vectors(), NOISY, rounds=7, sampled=2)
    least, most = int(result.participations.min()), int(result.participations.max())
    assert least < most
    (group,) = result.privacy.groups
    assert group.participations == most
    assert result.privacy.epsilon_ledger_max == best_epsilon(Repeated(group.group.local, most), 1e-5).epsilon


@pytest.mark.parametrize(
    "change",
    [
        {"trainer": replace(NOISY, noise=NOISY.noise / 2)},
        {"trainer": RGD(steps=NOISY.steps)},
        {"sampled": 2},
        {"seed": 9},
        {"aggregation": AgentLevelMean(clip=1.0, noise_multiplier=1.0)},
        {"agents": [*vectors()[:-1], vectors()[-1][:-1]]},
        {"budget": Budget(1.0)},
        {"output": "uniform"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_run_goes_on_by_its_own_plan_only(change: dict[str, Any]) -> None:
    """Past rounds would be accounted for as if they had been run by the new plan."""
    states: list[State] = []
    options: dict[str, Any] = {"agents": vectors(), "trainer": NOISY, "rounds": 3, "sampled": 3}
    simulate(EIGENVECTOR, **options, on_round=states.append)
    with pytest.raises(ValueError, match="another plan"):
        simulate(EIGENVECTOR, **(options | {"rounds": 6} | change), resume_from=states[-1])


def test_a_uniform_output_is_of_a_number_of_rounds_fixed_in_advance() -> None:
    states: list[State] = []
    simulate(EIGENVECTOR, vectors(), NOISY, rounds=3, output="uniform", on_round=states.append)
    with pytest.raises(ValueError, match="another plan"):
        simulate(EIGENVECTOR, vectors(), NOISY, rounds=6, output="uniform", resume_from=states[-1])


def test_a_file_that_is_no_state_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"nonsense")
    np.savez(tmp_path / "b.npz", point=np.zeros(3))
    for name in ("a", "b.npz"):
        with pytest.raises(ValueError, match="is not the state of a run"):
            State.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        State.load(tmp_path / "c")


# Refusals -------------------------------------------------------------------------------------------------------------


class Unsteady(FrechetMean):
    """The Fréchet mean, but that a large record's gradient is beyond all numbers that exp can take."""

    def gradient(self, w: Array, z: Array) -> Array:
        return super().gradient(w, z) * np.where(np.trace(z, axis1=-2, axis2=-1) > 100, 1e300, 1.0)[..., None, None]


@pytest.mark.parametrize("lost", [0, 2])
def test_a_round_goes_on_without_the_agents_that_are_refused(lost: int) -> None:
    problem, agents = matrices()
    arrays = [agents[i][: 5 + i] for i in range(5)]
    arrays[lost] = arrays[lost] + 200 * np.eye(3)
    others = [i for i in range(5) if i != lost]
    shares = np.array([len(arrays[i]) for i in others]) / sum(len(arrays[i]) for i in others)
    trainer = DPRSGD(steps=2, batch=5, clip=None, noise=0, step_size=0.2)
    result = simulate(Unsteady(problem.manifold), arrays, trainer, rounds=3, start=np.eye(3))
    for record in result.history:
        (refusal,) = record["refused"]
        assert refusal["agent"] == lost and "NaN or infinite" in str(refusal["reason"])
    json.dumps(result.history)
    # The round is the one of the others.
    w = np.eye(3)
    for t in range(3):
        uploads = [
            trainer.train(problem, w, Records(arrays[i][None], np.array([len(arrays[i])])), AgentStreams(0, t, [i]))[0]
            for i in others
        ]
        w = problem.manifold.exp(w, np.tensordot(shares, problem.manifold.log(w, np.stack(uploads)), axes=1))
    np.testing.assert_allclose(result.point, w, rtol=1e-10, atol=1e-12)
    # The refused agent has taken part all the same: it has released something.
    np.testing.assert_array_equal(result.participations, [3] * 5)


def test_if_nobody_can_be_used_the_point_stays() -> None:
    # Steps that overflow: every upload is NaN.
    problem, agents = matrices()
    result = simulate(problem, agents, RGD(steps=2, step_size=1e308), rounds=1, start=np.eye(3))
    np.testing.assert_array_equal(result.point, np.eye(3))
    assert len(result.history[0]["refused"]) == 5


@pytest.mark.parametrize("rounds_before", [0, 2])
def test_draws_that_came_to_nothing_are_counted_after_a_resume(tmp_path: Path, rounds_before: int) -> None:
    from pri_rfed.privacy.accountants import best_epsilon

    rule = AgentLevelMean(clip=0.5, noise_multiplier=2.0)
    options: dict[str, Any] = {"rounds": 4, "sampled": 3, "seed": 4, "aggregation": rule}
    path = tmp_path / "state.npz"

    def interrupted(coordinator: Coordinator, trainer: Any, on_round: Any) -> None:
        def close(least: int, pool: NDArray[np.int64] | None = None) -> bool:
            chosen, state = coordinator.draw(pool), coordinator.state
            uploads = train_agents(EIGENVECTOR, vectors(), trainer, state.point, chosen, 4, state.round)
            arrived = {int(agent): upload for agent, upload in zip(chosen[1:], uploads[1:], strict=True)}
            size = None if pool is None else len(pool)
            silent = chosen[:1].tolist()
            return coordinator.close(chosen, arrived, seconds=0.0, pool=size, silent=silent, min_replies=least)

        for _ in range(rounds_before):
            assert close(2)
        point = coordinator.state.point
        assert not close(3) and not close(3, np.array([0, 2, 3, 5]))
        assert coordinator.state.round == rounds_before
        np.testing.assert_array_equal(coordinator.state.point, point)
        coordinator.state.save(path)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(EIGENVECTOR, vectors(), NOISY, runtime=interrupted, **options)
    state = State.load(path)
    draws = [(3, 6)] * (rounds_before + 1) + [(3, 4)]
    assert state.draws == draws and state.participations.sum() == 3 * len(draws)
    failed = [draw["sampled"] for draw in state.failed]
    assert failed[0] == sample_agents(4, rounds_before, 3, 6).tolist() and set(failed[1]) <= {0, 2, 3, 5}

    result = simulate(EIGENVECTOR, vectors(), NOISY, resume_from=state, **options)
    repeated = result.history[rounds_before]
    assert [draw["sampled"] for draw in repeated["repeated"]] == failed
    assert repeated["sampled"] == sample_agents(4, rounds_before, 3, 6, attempt=2).tolist()
    assert sorted(result.final.draws) == [(3, 4)] + [(3, 6)] * 5 and result.participations.sum() == 18
    # Six draws are paid for, though the run has four rounds.
    (group,) = result.privacy.groups
    local = group.group.local
    paid = Composed((Repeated(Participation(local, 3, 6), 5), Participation(local, 3, 4)))
    assert result.privacy.epsilon_global == pytest.approx(best_epsilon(paid, 1e-5).epsilon, rel=1e-6)
    assert group.participations == result.participations.max()
    assert isinstance(result.agent_level_event, Composed)
    assert set(result.agent_level_event.events) == {repeat(rule.event(3, 6), 5), rule.event(3, 4)}


def test_the_servers_noise_is_new_in_every_round() -> None:
    rule = AgentLevelMean(clip=1.0, noise_multiplier=3.0)
    noise = []
    for seed in (0, 1, None):
        coordinator = Coordinator(
            FrechetMean(Euclidean(200)), np.array([5, 5]), rule, rounds=4, sampled=2, seed=seed, start=np.zeros(200)
        )
        while not coordinator.finished:
            before = coordinator.state.point
            coordinator.close(coordinator.draw(), np.stack([before, before]), seconds=0.0)
            noise.append(coordinator.state.point - before)
    rows = np.stack(noise)
    assert rows.std() == pytest.approx(3.0, rel=0.1)
    assert np.abs(np.corrcoef(rows) - np.eye(len(rows))).max() < 0.35


# What does not fit ----------------------------------------------------------------------------------------------------


def test_everything_that_is_wrong_is_said_at_once() -> None:
    agents = vectors()
    agents[3][0] *= 3
    with pytest.raises(ValueError) as error:
        simulate(
            EIGENVECTOR, agents, replace(NOISY, batch=30), rounds=0, sampled=9, delta=1.0, start=np.ones(6),
            output="best", evaluate_every=-1,  # type: ignore[arg-type]
        )  # fmt: skip
    for text in ("rounds = 0", "sampled = 9", "delta = 1.0", "start must be", "output = 'best'", "evaluate_every = -1",
                 "batch = 30", "agent 3 (3)", "norm 3"):  # fmt: skip
        assert text in str(error.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rounds": 1, "output": "uniform"}, "output = 'uniform'"),
        ({"rounds": 1, "resume_from": State(3, np.eye(6)[0], np.zeros(6, dtype=np.int64))}, "after round 3"),
        ({"rounds": 9, "resume_from": State(3, np.eye(6)[0], np.zeros(5, dtype=np.int64))}, "with 5 agents"),
        ({"rounds": 9, "resume_from": State(3, np.ones(6), np.zeros(6, dtype=np.int64))}, "resume_from must be"),
        ({"rounds": 1, "start": np.eye(6)[:1]}, "start must be one point"),
        ({"rounds": 2.5}, "rounds = 2.5 must be a whole number >= 1"),
        ({"rounds": float("nan")}, "rounds = nan must be"),
        ({"rounds": True}, "rounds = True must be"),
        ({"rounds": 1, "sampled": 1.5}, "sampled = 1.5 must be a whole number from 1 to that of the agents, 6"),
        ({"rounds": 1, "seed": -1}, "seed = -1 must be a whole number >= 0"),
        ({"rounds": 1, "seed": 1.5}, "seed = 1.5 must be"),
        ({"rounds": 1, "evaluate_every": 1.5}, "evaluate_every = 1.5 must be"),
    ],
)
def test_runs_that_cannot_be_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        simulate(EIGENVECTOR, vectors(), NOISY, **options)


@pytest.mark.parametrize("name", ["problem", "trainer", "aggregation", "budget"])
def test_what_is_no_such_thing_is_refused(name: str) -> None:
    arguments = {"problem": EIGENVECTOR, "trainer": NOISY, "rounds": 1} | {name: "nonsense"}
    with pytest.raises(ValueError, match=f"{name} = 'nonsense' must be an instance of pri_rfed"):
        simulate(agents=vectors(), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("problem", [EIGENVECTOR, FrechetMean(Sphere(6))], ids=lambda p: p.name)
def test_one_array_is_not_taken_for_agents(problem: Problem) -> None:
    # Its rows would be agents whose numbers are records, and broadcasting would mix what they hold.
    trainer = replace(NOISY, batch="full", clip=1.0)
    own = vectors()[0]
    with pytest.raises(ValueError, match=r"an array with 2 axes, \[n, 6\], in a list of one array for each agent"):
        simulate(problem, own, trainer, rounds=1, evaluate_every=0)
    with pytest.raises(ValueError, match=r"agent 0 \(0\) has an array of shape \(1, \d+, 6\)"):
        simulate(problem, [own[None]], trainer, rounds=1, evaluate_every=0)

    class OnDemand:
        counts = np.array([len(own)])

        def records(self, agents: Any) -> Records:
            return Records(own, self.counts)

    with pytest.raises(ValueError, match=r"must come as \[agents, n, 6\], not in the shape"):
        simulate(problem, OnDemand(), trainer, rounds=1, evaluate_every=0)


def test_numbers_of_numpy_are_numbers() -> None:
    own = simulate(EIGENVECTOR, vectors(), NOISY, rounds=2, sampled=3, seed=4, budget=Budget(2.0))
    numpys = simulate(
        EIGENVECTOR, vectors(), NOISY, rounds=np.int64(2), sampled=np.int32(3), seed=np.int64(4), budget=Budget(2.0)
    )
    assert_same(own, numpys)
    assert numpys.privacy.epsilon_global == own.privacy.epsilon_global


def test_a_budget_needs_noise_and_bounds() -> None:
    with pytest.raises(ValueError, match="budget needs a trainer with noise"):
        simulate(EIGENVECTOR, vectors(), RGD(), rounds=1, budget=Budget(1.0))
    with pytest.raises(ValueError, match="clip is needed"):
        simulate(*matrices(), DPRSGD(noise=0), rounds=1, budget=Budget(1.0))
    for epsilon, delta, told in ((0.0, 0.1, "epsilon = 0.0"), (1.0, 1.0, "delta = 1.0"), (np.inf, 0.1, "epsilon")):
        with pytest.raises(ValueError, match=told):
            Budget(epsilon, delta)


# Privacy --------------------------------------------------------------------------------------------------------------


def test_both_figures_of_a_run() -> None:
    from pri_rfed.privacy.accountants import best_epsilon

    agents = AgentArrays([vectors()[i][: 10 if i < 3 else 20] for i in range(6)])
    trainer = DPRSGD(steps=2, clip=1.0, noise=2.0)
    result = simulate(EIGENVECTOR, agents, trainer, rounds=6, sampled=2, delta=1e-4)
    local = trainer.event(EIGENVECTOR, 10)  # the fewer records, the more each one counts
    expected = best_epsilon(Repeated(Participation(local, 2, 6), 6), 1e-4).epsilon
    assert result.privacy.epsilon_global == pytest.approx(expected, rel=1e-9)
    most = int(result.participations[:3].max())
    ledger = [
        best_epsilon(Repeated(trainer.event(EIGENVECTOR, n), int(times)), 1e-4).epsilon
        for n, times in ((10, most), (20, result.participations[3:].max()))
    ]
    assert result.privacy.epsilon_ledger_max == pytest.approx(max(ledger), rel=1e-9)
    assert result.participations.sum() == 12
    assert simulate(EIGENVECTOR, agents, RGD(), rounds=2).privacy.epsilon_global == np.inf


def test_a_budget_is_met_and_used_up() -> None:
    result = simulate(
        EIGENVECTOR, vectors(), replace(NOISY, batch="full"), rounds=4, sampled=3, budget=Budget(2.0, 1e-3)
    )
    assert result.delta == 1e-3
    assert 0.98 * 2.0 <= result.privacy.epsilon_global <= 2.0
    assert isinstance(result.trainer, DPRSGD) and result.trainer.noise != NOISY.noise
    direct = simulate(EIGENVECTOR, vectors(), result.trainer, rounds=4, sampled=3)
    np.testing.assert_array_equal(direct.point, result.point)


def test_whole_agents_are_charged_when_the_server_adds_the_noise() -> None:
    rule = AgentLevelMean(clip=0.5, noise_multiplier=2.0)
    result = simulate(EIGENVECTOR, vectors(), RGD(), rounds=3, sampled=2, aggregation=rule)
    event = rule.event(2, 6)
    assert event is not None and result.agent_level_event == Repeated(event, 3)
    again = simulate(EIGENVECTOR, vectors(), RGD(), rounds=3, sampled=2, aggregation=rule)
    np.testing.assert_array_equal(again.point, result.point)
    quiet = simulate(EIGENVECTOR, vectors(), RGD(), rounds=3, sampled=2)
    assert quiet.agent_level_event is None and np.abs(quiet.point - result.point).max() > 1e-3


def test_agents_that_see_each_others_gradients_cannot_be_protected_by_the_server() -> None:
    rule = AgentLevelMean(clip=0.5, noise_multiplier=2.0)
    with pytest.raises(ValueError, match="enters the uploads of all others"):
        simulate(EIGENVECTOR, vectors(), RFedSVRG(), rounds=1, aggregation=rule)


# Without noise, the optimum -------------------------------------------------------------------------------------------


def final(result: Result) -> tuple[float, float]:
    return result.history[-1]["excess_risk"], result.history[-1]["gradient_norm"]


@pytest.mark.parametrize(
    "problem",
    [EIGENVECTOR, PrincipalSubspace(6, 2), PrincipalSubspace(6, 2, "stiefel")],
    ids=lambda problem: str(problem.manifold),
)
@pytest.mark.parametrize(
    "trainer",
    [RGD(steps=1, step_size=0.7), DPRSGD(steps=1, clip=1.0, noise=0, step_size=0.7), RFedSVRG(inner_steps=5)],
    ids=lambda t: t.name,
)
def test_full_batches_without_noise_reach_the_principal_components(problem: Problem, trainer: Any) -> None:
    excess, gradient = final(simulate(problem, vectors(), trainer, rounds=300, evaluate_every=300))
    assert -1e-12 < excess < 1e-8 and gradient < 1e-4


@pytest.mark.parametrize(
    ("trainer", "rounds"),
    [
        (RGD(steps=1, step_size=0.4), 40),
        (RFedSVRG(inner_steps=5, step_size=0.2), 40),
        (RSVRG(epochs=1, inner_steps=1, batch="full", step_size=0.4), 40),
        (DPRSVRG(epochs=1, inner_steps=1, batch="full", step_size=0.4, noise=0), 40),
    ],
    ids=lambda t: getattr(t, "name", ""),
)
@pytest.mark.parametrize("aggregation", [TangentMean(), FrechetMeanAggregation()], ids=lambda a: a.name)
def test_full_batches_without_noise_reach_the_frechet_mean(trainer: Any, rounds: int, aggregation: Any) -> None:
    problem, agents = matrices()
    excess, gradient = final(simulate(problem, agents, trainer, rounds=rounds, aggregation=aggregation))
    assert -1e-12 < excess < 1e-8
    assert gradient < (1e-4 if aggregation.name == "tangent-mean" else 1e-1)


def test_a_public_center_is_where_a_run_begins() -> None:
    manifold = Hyperboloid(2)
    center = np.array([1.0, 0, 0])
    rng = np.random.default_rng(7)
    problem = FrechetMean(manifold, center, 0.5, outside="move")
    agents = list(near(manifold, center, rng, (3, 4), 1.0))
    states: list[State] = []
    simulate(problem, agents, RGD(steps=1, step_size=0.5), rounds=60, on_round=states.append)
    # Moved inside, records keep the mean inside as well.
    assert manifold.dist(center, states[-1].point) < 0.5
    moved = problem.prepare_records(np.concatenate(agents))
    assert np.abs(problem.gradient(states[-1].point, moved).mean(axis=0)).max() < 1e-9
    np.testing.assert_array_equal(start_point(problem, 1), center)


def test_noise_costs_accuracy_and_more_epsilon_costs_less() -> None:
    rng = np.random.default_rng(8)
    agents = AgentArrays(list(rng.standard_normal((4, 200, 2)) * 0.2 + 1.0))
    problem = FrechetMean(Euclidean(2), np.zeros(2), 3.0, outside="move")
    risks = [
        np.mean([
            simulate(
                problem, agents, DPRSGD(steps=2, noise=noise, step_size=0.25), rounds=5, seed=seed, evaluate_every=5
            ).history[-1]["excess_risk"]
            for seed in range(10)
        ])
        for noise in (0.0, 0.1, 0.5, 2.5)
    ]  # fmt: skip
    assert all(a < b for a, b in itertools.pairwise(risks))


# The package ----------------------------------------------------------------------------------------------------------


def test_the_package_offers_its_names_and_loads_them_late() -> None:
    assert pri_rfed.simulate is simulate and pri_rfed.DPRSGD is DPRSGD and pri_rfed.Sphere is Sphere
    assert {name for name in pri_rfed.__all__ if getattr(pri_rfed, name, None) is None} == set()
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = pri_rfed.simulat  # type: ignore[attr-defined]
    code = "import pri_rfed, sys; print(sorted({'numpy', 'scipy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Many agents ----------------------------------------------------------------------------------------------------------


def test_figures_of_agents_by_size_are_the_same_by_pieces() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 6, 200_000)
    counts[-1] = 9
    taken = rng.integers(0, 50, len(counts))
    sizes = [1, 2, 3, 4, 5, 9]
    assert agents_by_size(counts) == {n: int((counts == n).sum()) for n in sizes}
    assert most_by_size(counts, taken) == {n: int(taken[counts == n].max()) for n in sizes}


def test_memory_in_proportion_to_the_agents_is_their_participations_and_no_more() -> None:
    class OnDemand:
        """Twenty records of each agent, made when they are asked for."""

        def __init__(self, agents: int):
            self.counts = np.broadcast_to(np.int64(20), agents)

        def records(self, agents: NDArray[np.int64]) -> Records:
            own = [unit_vectors(np.random.default_rng(int(a)), (20, 5)) for a in agents]
            return Records(np.stack(own), self.counts[agents])

    def peak(agents: int) -> int:
        tracemalloc.start()
        trainer = DPRSGD(steps=2, noise=2.0, step_size=0.1)
        result = simulate(PrincipalEigenvector(5), OnDemand(agents), trainer, rounds=3, sampled=4, evaluate_every=0)
        assert result.participations.sum() == 12
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    # 4 bytes for the state before a round and 4 for the one after it.
    assert peak(1_200_000) - peak(200_000) <= 8.2 * 1_000_000
