"""An agent keeps to its owner's policy and its ledger, whatever the server asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from pri_rfed.manifolds.hyperboloid import Hyperboloid
from pri_rfed.participant import Participant, Refused, answer, least_noise
from pri_rfed.policy import load_policies, load_policy
from pri_rfed.privacy.events import (
    Approximate,
    Composed,
    Gaussian,
    NonPrivate,
    NoRelease,
    Pure,
    SampledWithoutReplacement,
    repeat,
)
from pri_rfed.privacy.ledger import Ledger, Renyi
from pri_rfed.training import DPRSGD
from pri_rfed.wire import Plan

N, DIM = 40, 5
TRAINER: dict[str, Any] = {
    "name": "dp-rsgd", "steps": 4, "batch": 8, "noise": 2.0, "noise_unit": "sensitivity", "step_size": 0.1,
}  # fmt: skip
PLAN = Plan("run", 0, 0, {"name": "principal-eigenvector"}, TRAINER, np.eye(DIM)[0], {"ward": N})


def make(folder: Path, epsilon: float = 5.0, **changes: Any) -> Path:
    """A policy with its data and ledger in `folder`; entries of None are left out."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    z = rng.normal(size=(N, DIM))
    np.save(folder / "records.npy", z / np.linalg.norm(z, axis=1, keepdims=True))
    if not (folder / "ledger").exists():
        Ledger.create(folder / "ledger").set_budget("ward/2026", epsilon, 1e-5, Renyi.suited(epsilon, 1e-5))
    table = {
        "agent": "ward",
        "dataset": "ward/2026",
        "data": "records.npy",
        "ledger": "ledger",
        "trainers": ["dp-rsgd"],
        "least_noise": 1.0,
        "most_records": 100,
        "budget": {"epsilon": epsilon, "delta": 1e-5},
        "problems": [{"name": "principal-eigenvector"}],
    } | changes
    path = folder / "policy.toml"
    path.write_text(tomli_w.dumps({key: value for key, value in table.items() if value is not None}))
    return path


def participant(folder: Path, **changes: Any) -> Participant:
    return Participant(load_policy(make(folder, **changes)))


def releases(folder: Path) -> int:
    return Ledger.open(folder / "ledger").status("ward/2026").releases


def trainer(**changes: Any) -> Plan:
    return replace(PLAN, trainer={key: value for key, value in (TRAINER | changes).items() if value is not None})


def test_it_trains_what_the_owner_allows(tmp_path: Path) -> None:
    agent = participant(tmp_path)
    points = [agent.train(PLAN) for _ in range(2)]
    assert all(point.shape == (DIM,) and abs(np.linalg.norm(point) - 1) < 1e-12 for point in points)
    assert releases(tmp_path) == 2
    assert (points[0] != points[1]).any(), "its randomness is not the server's to know"


def test_only_its_owner_can_give_it_a_seed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    participant(tmp_path / "without")
    assert not caplog.records
    agent = participant(tmp_path, test={"seed": 1, "stream": 3})
    assert "whoever knows it can take the noise away" in caplog.text
    assert (agent.train(PLAN) == agent.train(PLAN)).all()
    other = participant(tmp_path / "other", test={"seed": 1, "stream": 4})
    assert (agent.train(PLAN) != other.train(PLAN)).any()


def test_its_owner_is_told_where_labels_alone_are_protected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    problem = {"name": "hyperbolic-structured-prediction", "weight_bound": 1.0, "radius": 1.0}
    path = make(tmp_path, problems=[problem])
    labels = Hyperboloid(DIM - 2).random_point(np.random.default_rng(1), (N,))
    labels[:, 1:] *= 0.1 / np.linalg.norm(labels[:, 1:], axis=1, keepdims=True)
    labels[:, 0] = np.sqrt(1 + np.square(labels[:, 1:]).sum(axis=1))
    np.save(tmp_path / "records.npy", np.column_stack([np.ones(N), labels]))
    agent = Participant(load_policy(path))
    assert "label DP" in caplog.text
    agent.train(replace(PLAN, problem=problem | {"outside": "refuse"}, point=np.eye(DIM - 1)[0]))
    (entry,) = (e for e in Ledger.open(tmp_path / "ledger").status("ward/2026").history if "label" in e.body)
    assert entry.body["label"] == "run: round 1, attempt 1"
    assert entry.body["protects"].startswith("label DP: of a record its label alone is protected")


def test_the_least_noise_holds_for_laplace_noise_too(tmp_path: Path) -> None:
    problem = {"name": "frechet-mean", "manifold": "euclidean", "radius": 2.0}
    agent = participant(tmp_path, trainers=["riemannian-laplace"], problems=[problem])

    def plan(epsilon: float) -> Plan:
        table = {"name": "riemannian-laplace", "epsilon": epsilon}
        return replace(PLAN, problem=problem | {"outside": "refuse"}, trainer=table)

    with pytest.raises(Refused, match=r"its noise is 0\.5 times the sensitivity; the owner asks for 1"):
        agent.train(plan(2.0))
    assert releases(tmp_path) == 0
    assert agent.train(plan(1.0)).shape == (DIM,)


REFUSED: dict[str, tuple[Plan, str]] = {
    "another trainer": (trainer(name="dp-rsvrg", steps=None), "does not allow the trainer dp-rsvrg"),
    "code of the server's": (trainer(name="os:system"), "does not allow the trainer os:system"),
    "no trainer": (replace(PLAN, trainer={}), "does not allow the trainer None"),
    "an option that there is not": (trainer(seed=0), "seed"),
    "no noise": (trainer(noise=0.0), "without noise"),
    "negative noise": (trainer(noise=-2.0), "noise"),
    "little noise": (trainer(noise=0.99), "0.99 times the sensitivity; the owner asks for 1"),
    "little noise in other words": (trainer(noise=0.2, noise_unit="absolute"), "times the sensitivity"),
    "many gradients": (trainer(steps=13), "104 gradients of records; the owner allows 100"),
    "a batch that is too large": (trainer(batch=41, steps=1), "batch = 41 exceeds"),
    "another problem": (replace(PLAN, problem={"name": "principal-subspace", "r": 2}), "does not allow the problem"),
    "the problem with other fields": (
        replace(PLAN, problem={"name": "principal-eigenvector", "n": DIM}), "does not allow the problem"
    ),
    "a class of the server's": (replace(PLAN, problem={"name": "evil:Problem"}), "does not allow the problem"),
    "other records": (replace(PLAN, agents={"ward": N + 1}), "registered with 41 records and holds 40"),
    "a base point of another shape": (replace(PLAN, point=np.eye(DIM + 1)[0]), "base point"),
    "two base points": (replace(PLAN, point=np.eye(DIM)[:2]), "base point"),
    "a base point off the manifold": (replace(PLAN, point=2 * np.eye(DIM)[0]), "base point"),
    "a base point of NaN": (replace(PLAN, point=np.full(DIM, np.nan)), "base point"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_it_refuses_before_anything_is_spent(kind: str, tmp_path: Path) -> None:
    plan, reason = REFUSED[kind]
    agent = participant(tmp_path)
    with pytest.raises(Refused, match=reason):
        agent.train(plan)
    assert releases(tmp_path) == 0
    assert answer({"ward": agent}, plan).points == {}


def test_gradients_of_another_agent_are_never_shared(tmp_path: Path) -> None:
    agent = participant(tmp_path, trainers=["rfedsvrg", "dp-rsgd"])
    with pytest.raises(Refused, match="see each other's gradients"):
        agent.train(replace(PLAN, trainer={"name": "rfedsvrg"}))


def test_it_stops_at_the_budget(tmp_path: Path) -> None:
    agent = participant(tmp_path, epsilon=1.0)
    done = 0
    with pytest.raises(Refused, match="it would pass the owner's budget") as refusal:
        while done < 1000:
            agent.train(trainer(noise=20.0))
            done += 1
    assert 1 <= done == releases(tmp_path)
    assert str(tmp_path) not in str(refusal.value) and "spent" not in str(refusal.value)
    # Nor does a new process, or a second one for the same data set, begin anew.
    with pytest.raises(Refused, match="budget"):
        participant(tmp_path, epsilon=1.0).train(trainer(noise=20.0))


def test_a_damaged_ledger_vouches_for_nothing(tmp_path: Path) -> None:
    agent = participant(tmp_path)
    content = bytearray((tmp_path / "ledger").read_bytes())
    (tmp_path / "ledger").write_bytes(content[: len(content) // 2])
    with pytest.raises(Refused, match="its ledger does not vouch for the release") as refusal:
        agent.train(PLAN)
    assert str(tmp_path) not in str(refusal.value)


def test_a_failed_training_says_nothing_and_has_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("record 7 is [1, 2, 3]")

    agent = participant(tmp_path)
    monkeypatch.setattr(DPRSGD, "train", fail)
    got = answer({"ward": agent}, PLAN)
    assert not got.points and not got.refused and "record 7" not in str(got.pack())
    assert releases(tmp_path) == 1 and "record 7" in caplog.text, "its owner finds it in the log"


def test_an_agent_that_is_not_here(tmp_path: Path) -> None:
    got = answer({"ward": participant(tmp_path)}, replace(PLAN, agents={"ward": N, "stranger": 3}))
    assert list(got.points) == ["ward"] and got.refused == {"stranger": "it is not here"}


def test_changed_records_are_told_to_the_owner(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    participant(tmp_path).train(PLAN)
    policy = load_policy(make(tmp_path))
    np.save(policy.data, np.eye(DIM)[np.arange(N) % DIM])
    Participant(policy).train(PLAN)
    assert "not those of the last release" in caplog.text and releases(tmp_path) == 2


# Policies -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"agent": None}, "agent: Field required"),
        ({"agent": "a b\n"}, "agent"),
        ({"budget": {"epsilon": -1.0, "delta": 1e-5}}, "budget.epsilon"),
        ({"budget": {"epsilon": float("inf"), "delta": 1e-5}}, "budget.epsilon"),
        ({"budget": {"epsilon": 1.0, "delta": 0.0}}, "budget.delta"),
        ({"least_noise": 0.0}, "least_noise"),
        ({"most_records": 0}, "most_records"),
        ({"trainers": []}, "trainers"),
        ({"trainers": ["dp-sgd"]}, "'dp-sgd' is unknown"),
        ({"problems": []}, "problems"),
        ({"seed": 3}, "seed"),
    ],
)
def test_a_policy_is_checked(changes: Mapping[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=reason):
        load_policy(make(tmp_path, **changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"problems": [{"name": "pca"}]}, "problem.name"),
        ({"problems": [{"name": "principal-subspace"}]}, "problem.r"),
        ({"data": "absent.npy"}, "absent.npy' cannot be read"),
        ({"data": "policy.toml"}, "cannot be read"),
        ({"ledger": "absent"}, "there is no ledger"),
        ({"dataset": "ward/2027"}, "has no budget here"),
        ({"budget": {"epsilon": 6.0, "delta": 1e-5}}, "epsilon = 5 at delta = 1e-05; the policy of ward says 6"),
    ],
)
def test_what_does_not_fit_shows_at_the_start(changes: Mapping[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=reason):
        Participant(load_policy(make(tmp_path, **changes)))


def test_records_that_are_none_of_the_problem_show_at_the_start(tmp_path: Path) -> None:
    policy = load_policy(make(tmp_path))
    np.save(policy.data, 2 * np.eye(DIM))
    with pytest.raises(ValueError, match="norm"):
        Participant(policy)
    np.save(policy.data, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="cannot be read"):
        Participant(policy)


def test_records_may_be_in_an_archive(tmp_path: Path) -> None:
    np.savez(tmp_path / "records.npz", records=np.eye(DIM))
    assert participant(tmp_path, data="records.npz").count == DIM


def test_a_folder_of_policies(tmp_path: Path) -> None:
    first = make(tmp_path)
    assert [policy.agent for policy in load_policies(tmp_path)] == ["ward"]
    (tmp_path / "second.toml").write_text(first.read_text().replace('agent = "ward"', 'agent = "other"'))
    with pytest.raises(ValueError, match=r"ledger .* stands in two policies"):
        load_policies(tmp_path)
    os.remove(first)
    os.remove(tmp_path / "second.toml")
    with pytest.raises(ValueError, match="holds no policy"):
        load_policies(tmp_path)


def test_the_least_noise_of_an_event() -> None:
    one, two = Gaussian(2.0, 3.0), Gaussian(1.0, 0.5)
    assert least_noise(repeat(SampledWithoutReplacement(one, 2, 10), 7)) == 1.5
    assert least_noise(Composed((repeat(one, 3), two, NoRelease()))) == 0.5
    assert least_noise(NoRelease()) == float("inf")
    assert least_noise(repeat(Pure(4.0), 3)) == 0.25
    assert least_noise(Composed((one, Approximate(0.1, 1e-6)))) == 0.0
    assert least_noise(Composed((one, NonPrivate("rsgd")))) == 0.0
