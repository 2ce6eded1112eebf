"""Server and clients in one process: the simulation's result, and what becomes of those who break the rules."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import EIGENVECTOR, SPD, Federation, experiment, simulated
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from clients.app import app
from pri_rfed.coordinator import Coordinator, RunStopped
from pri_rfed.experiment.federation import Exchange
from pri_rfed.owners import agent_name
from pri_rfed.privacy.events import event_from_dict, repeat
from pri_rfed.randomness import Role, stream
from pri_rfed.simulation import train_agents
from pri_rfed.wire import RECORD
from server.local_grid import LocalGrid
from server.rehearsal import in_process
from server.strategy import exchange_messages

Honest = Callable[[Message, Context], Message]


@pytest.mark.parametrize("tables", [EIGENVECTOR, SPD], ids=["dp-rsgd on the sphere", "dp-rsvrg on SPD"])
@pytest.mark.parametrize("clients", [1, 4])
def test_it_is_the_simulation(tables: Mapping[str, Any], clients: int) -> None:
    of = experiment(tables)
    expected, got = simulated(of), simulated(of, in_process(of, app, clients, Exchange()))
    np.testing.assert_allclose(got.point, expected.point, rtol=0, atol=1e-9)
    assert got.privacy == expected.privacy and got.local_events == expected.local_events
    assert (got.participations == expected.participations).all()
    for mine, theirs in zip(got.history, expected.history, strict=True):
        assert mine.keys() == theirs.keys() and mine["sampled"] == theirs["sampled"] and not mine["refused"]
        assert mine.get("cost") == pytest.approx(theirs.get("cost"), abs=1e-9)


def test_ledgers_hold_the_same_events_as_the_simulation(tmp_path: Path) -> None:
    federation = Federation(experiment(), tmp_path)
    federation.run()
    expected = simulated(federation.experiment)
    assert (federation.charges() == expected.participations).all() and expected.participations.max() >= 2
    for agent, count in enumerate(federation.experiment.agents.counts.tolist()):
        history = federation.ledger(agent).status(agent_name(agent)).history
        events = [event_from_dict(entry.body["event"]) for entry in history if entry.kind == "charge"]
        assert all(event == expected.local_events[count] for event in events)


def test_a_state_is_gone_on_from(tmp_path: Path) -> None:
    federation = Federation(experiment(), tmp_path)
    whole = federation.run()
    federation.states[1].save(tmp_path / "state.npz")
    resumed = federation.run(type(whole).load(tmp_path / "state.npz"))
    assert (resumed.point == whole.point).all() and resumed.draws == whole.draws
    assert (resumed.participations == whole.participations).all()


def test_the_stock_loop_of_flower_runs_the_strategy(tmp_path: Path) -> None:
    federation = Federation(experiment(), tmp_path)
    strategy = federation.strategy()
    result = strategy.start(federation.grid, ArrayRecord(), num_rounds=federation.experiment.run.rounds)
    np.testing.assert_allclose(result.arrays["point"].numpy(), simulated(federation.experiment).point, atol=1e-9)


# Hostile replies ------------------------------------------------------------------------------------------------------


def reply(message: Message, **entries: Any) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord(entries)}), reply_to=message)


def with_header(message: Message, honest: Message, numbers: bytes | None = None, **changes: Any) -> Message:
    """The honest reply with entries of its header, or its numbers, replaced."""
    record = honest.content[RECORD]
    header = json.loads(str(record["header"])) | changes
    return reply(message, header=json.dumps(header), numbers=record["numbers"] if numbers is None else numbers)


def with_points(message: Message, honest: Message, alter: Callable[[np.ndarray[Any, Any]], Any]) -> Message:
    record = honest.content[RECORD]
    points = np.frombuffer(bytes(record["numbers"])).reshape(json.loads(str(record["header"]))["shape"])  # type: ignore[arg-type]
    return with_header(message, honest, np.ascontiguousarray(alter(points.copy())).tobytes())


HOSTILE: dict[str, tuple[Callable[[Message, Message], Message], str]] = {
    "nothing in it": (lambda m, h: Message(RecordDict(), reply_to=m), "not one record"),
    "an array in place of the record": (
        lambda m, h: Message(RecordDict({RECORD: ArrayRecord([np.zeros(64)])}), reply_to=m), "not one record",
    ),
    "one record more": (
        lambda m, h: Message(RecordDict({**h.content, "metrics": ConfigRecord({"loss": 1.0})}), reply_to=m),
        "not one record",
    ),
    "garbage": (lambda m, h: reply(m, header="\x00\x01", numbers=b"?"), "no JSON"),
    "another version": (lambda m, h: with_header(m, h, protocol=99, project="7.0"), "version 99"),
    "a replayed reply": (lambda m, h: with_header(m, h, plan="0" * 64), "another plan"),
    "another's name": (lambda m, h: with_header(m, h, points=["agent-999"]), "not asked"),
    "the same agent twice": (lambda m, h: with_header(m, h, points=["agent-0"] * 9), "not asked|twice"),
    "a wrong shape": (lambda m, h: with_header(m, h, shape=[1]), "shape"),
    "too many numbers": (lambda m, h: with_header(m, h, numbers=b"\0" * (1 << 20)), "1048576 bytes"),
    "single precision": (lambda m, h: with_points(m, h, np.float32), "bytes of numbers"),
    "NaN": (lambda m, h: with_points(m, h, lambda x: x * np.nan), "NaN or infinite"),
    "infinity": (lambda m, h: with_points(m, h, lambda x: x / 0.0), "NaN or infinite"),
    "off the manifold": (lambda m, h: with_points(m, h, lambda x: 2 * x), "norm|length|manifold"),
    "an error": (lambda m, h: Message(Error(2, "boom\nboom"), reply_to=m), "error 2: boom boom"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_a_hostile_reply_is_left_out_with_the_reason(kind: str, tmp_path: Path) -> None:
    of = experiment(run={"rounds": 2, "sampled": 8})
    alter, reason = HOSTILE[kind]
    bad = 3

    def tamper(message: Message, context: Context, honest: Honest) -> Message:
        answer = honest(message, context)
        return alter(message, answer) if context.node_id == bad else answer

    federation = Federation(of, tmp_path, tamper=tamper)
    state = federation.run()
    victims = federation.dealt[bad - 2]
    for record in state.history:
        assert {refusal["agent"] for refusal in record["refused"]} == set(victims)
        for refusal in record["refused"]:
            assert any(part in str(refusal["reason"]) for part in reason.split("|")), refusal["reason"]
            assert "\n" not in str(refusal["reason"])
    # They trained: it is counted. And the point is the one of the others alone.
    assert (state.participations == 2).all() and (federation.charges() == 2).all()
    np.testing.assert_allclose(state.point, without(of, victims).point, rtol=0, atol=1e-9)


def without(of: Any, absent: list[int]) -> Any:
    """The run of an experiment in which these agents never answer."""
    coordinator = Coordinator(
        of.problem, of.agents.counts, of.aggregation, rounds=of.run.rounds, sampled=of.sampled, seed=of.run.seed
    )
    while not coordinator.finished:
        chosen, state = coordinator.draw(), coordinator.state
        uploads = train_agents(of.problem, of.agents, of.trainer, state.point, chosen, of.run.seed, state.round)
        kept = {int(agent): upload for agent, upload in zip(chosen, uploads, strict=True) if agent not in absent}
        coordinator.close(chosen, kept, seconds=0.0)
    return coordinator.state


def test_an_antipodal_point_is_beyond_the_injectivity_radius(tmp_path: Path) -> None:
    of = experiment(run={"rounds": 1, "sampled": 8})
    start = of.problem.start(stream(of.run.seed, Role.START))

    def tamper(message: Message, context: Context, honest: Honest) -> Message:
        answer = honest(message, context)
        return with_points(message, answer, lambda x: 0 * x - start) if context.node_id == 2 else answer

    federation = Federation(of, tmp_path, tamper=tamper)
    refused = federation.run().history[0]["refused"]
    assert [refusal["agent"] for refusal in refused] == federation.dealt[0]
    assert all("injectivity radius" in str(refusal["reason"]) for refusal in refused)


def test_weights_are_the_registered_ones(tmp_path: Path) -> None:
    """A client that claims to hold more than it has registered changes nothing."""

    def tamper(message: Message, context: Context, honest: Honest) -> Message:
        answer = honest(message, context)
        return with_header(message, answer, records=10**9, agents={"agent-0": 10**9}, weight=1e9)

    federation = Federation(experiment(), tmp_path, tamper=tamper)
    np.testing.assert_allclose(federation.run().point, simulated(federation.experiment).point, rtol=0, atol=1e-9)


def test_a_second_reply_does_not_count(tmp_path: Path) -> None:
    federation = Federation(experiment(), tmp_path)
    strategy = federation.strategy()
    messages = strategy.configure_train(1, ArrayRecord(), ConfigRecord(), federation.grid)
    replies = exchange_messages(federation.grid, messages, 10.0)
    forged = [with_points(message, honest, lambda x: -x) for message, honest in zip(messages, replies, strict=True)]
    strategy.aggregate_train(1, [*replies, *forged, *replies])
    expected = simulated(experiment(run={"rounds": 1}))
    np.testing.assert_allclose(strategy.coordinator.state.point, expected.point, rtol=0, atol=1e-9)
    assert not strategy.coordinator.state.history[0]["refused"]


# Missing replies ------------------------------------------------------------------------------------------------------


def test_too_few_replies_repeat_the_round_and_then_stop_the_run(tmp_path: Path) -> None:
    of = experiment(run={"rounds": 3, "sampled": 3})

    def tamper(message: Message, context: Context, honest: Honest) -> Message:
        answer = honest(message, context)
        return answer if json.loads(str(message.content[RECORD]["header"]))["round"] == 0 else reply(message)

    federation = Federation(of, tmp_path, tamper=tamper, exchange=Exchange(min_replies=2, attempts=3))
    with pytest.raises(RunStopped, match=r"round 2 was drawn 3 times.* no header"):
        federation.run()
    state = federation.states[-1]
    assert state.round == 1 and len(state.failed) == 3 and len(state.history) == 1
    draws = [draw["sampled"] for draw in state.failed]
    assert len({tuple(draw) for draw in draws}) > 1, "each attempt draws anew"
    # Everything that agents did is counted, by the server as by their ledgers.
    assert state.draws == [(3, 8)] * 4 and state.participations.sum() == 12
    assert (federation.charges() == state.participations).all()
    # The run can be gone on with.
    honest = Federation(of, tmp_path / "again", exchange=federation.exchange)
    done = honest.run(state)
    assert done.round == 3 and len(done.history[1]["repeated"]) == 3 and done.draws == [(3, 8)] * 6


AGENT_LEVEL = {"name": "agent-level-mean", "clip": 0.4, "noise_multiplier": 2.0}


@pytest.mark.parametrize("kind", ["NaN", "off the manifold", "garbage", "an error"])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_whether_a_round_counts_never_depends_on_uploads_where_the_server_is_the_mechanism(
    kind: str, tmp_path: Path
) -> None:
    """A draw in vain would say something of an agent's upload without noise."""
    of = experiment(run={"rounds": 2, "sampled": 3}, aggregation=AGENT_LEVEL)

    def tamper(message: Message, context: Context, honest: Honest) -> Message:
        return HOSTILE[kind][0](message, honest(message, context))

    state = Federation(of, tmp_path, tamper=tamper, exchange=Exchange(min_replies=3)).run()
    assert state.draws == [(3, 8)] * 2 and all(len(record["refused"]) == 3 for record in state.history)
    # What cannot be used is the zero vector, under noise as everything else.
    assert of.problem.manifold.dist(state.point, of.problem.start(stream(of.run.seed, Role.START))) > 1e-3


def test_every_draw_in_vain_is_accounted_for_where_the_server_is_the_mechanism(tmp_path: Path) -> None:
    of = experiment(run={"rounds": 2, "sampled": 3}, aggregation=AGENT_LEVEL)
    federation = Federation(of, tmp_path, exchange=Exchange(min_replies=3))
    strategy = federation.strategy()
    messages = strategy.configure_train(1, ArrayRecord(), ConfigRecord(), federation.grid)
    undelivered = [Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=message) for message in messages]
    strategy.aggregate_train(1, undelivered)
    assert strategy.coordinator.state.round == 0, "nobody answered, whatever their records: the round is drawn anew"
    result = replace(simulated(of), final=strategy.run(federation.grid))
    assert result.final.draws == [(3, 8)] * 3 and len(result.final.history) == 2
    release = of.aggregation.event(3, 8)
    assert release is not None and result.agent_level_event == repeat(release, 3)


def test_a_client_that_declines_is_missed_and_has_not_spent_where_the_server_is_the_mechanism(tmp_path: Path) -> None:
    of = experiment(run={"rounds": 1, "sampled": 8}, aggregation=AGENT_LEVEL)

    def tamper(message: Message, context: Context, honest: Honest) -> Message:
        if context.node_id == 2:
            record: Any = message.content[RECORD]
            record["header"] = json.dumps(json.loads(str(record["header"])) | {"protocol": 99})
        return honest(message, context)

    federation = Federation(of, tmp_path, tamper=tamper, exchange=Exchange(min_replies=7, attempts=2))
    with pytest.raises(RunStopped, match=r"drawn 2 times.* version 99"):
        federation.run()
    assert (federation.states[-1].participations == federation.charges()).all() and federation.charges()[0] == 0


def test_a_draw_is_written_down_before_anybody_is_asked(tmp_path: Path) -> None:
    """Wherever the server ends, what its agents may have released by then is counted."""
    federation = Federation(experiment(run={"rounds": 2, "sampled": 3}), tmp_path)
    push, asked = federation.grid.push_messages, list[int]()

    def watched(messages: Iterable[Message]) -> list[str]:
        before = federation.states[-1]
        assert len(before.failed) == 1 and len(federation.states) == 1 + 2 * before.round
        assert before.participations[before.failed[0]["sampled"]].min() >= 1
        asked.append(before.round)
        ids = push(messages)
        assert (before.participations == federation.charges()).all()
        return ids

    federation.grid.push_messages = watched  # type: ignore[method-assign]
    whole = federation.run()
    assert asked == [0, 1] and whole.draws == [(3, 8)] * 2 and not whole.failed
    # Gone on with from there, the round is another draw, and both are accounted for.
    resumed = Federation(federation.experiment, tmp_path / "again").run(federation.states[2])
    assert resumed.draws == [(3, 8)] * 3 and resumed.history[0] == whole.history[0]
    (lost,) = resumed.history[1]["repeated"]
    assert lost["sampled"] == whole.history[1]["sampled"] != resumed.history[1]["sampled"]
    assert resumed.participations.sum() == 9


def test_agents_that_decline_have_not_spent(tmp_path: Path) -> None:
    of = experiment(run={"rounds": 2, "sampled": 8})
    federation = Federation(of, tmp_path)
    policy = tmp_path / "client-0" / "agent-0.toml"
    text = policy.read_text()
    policy.write_text(text.replace('trainers = [\n    "dp-rsgd",\n]', 'trainers = ["dp-rsvrg"]'))
    assert policy.read_text() != text
    state = federation.run()
    for record in state.history:
        (refusal,) = record["refused"]
        assert refusal["agent"] == 0 and "declined: the owner does not allow the trainer" in str(refusal["reason"])
    assert state.participations.tolist() == [0, *[2] * 7] == federation.charges().tolist()


def test_accounts_with_the_pool_that_was_drawn_from(tmp_path: Path) -> None:
    of = experiment(run={"rounds": 3, "sampled": 3})
    federation = Federation(of, tmp_path, exchange=Exchange(draw_from="connected"))
    away = federation.nodes.copy()
    strategy = federation.strategy()
    contexts = federation.grid._contexts
    gone = {node: contexts.pop(node) for node in list(away)[2:]}
    reachable = [agent for agents in federation.dealt[:2] for agent in agents]
    messages = strategy.configure_train(1, ArrayRecord(), ConfigRecord(), federation.grid)
    strategy.aggregate_train(1, exchange_messages(federation.grid, messages, 10.0))
    contexts.update(gone)
    state = strategy.run(federation.grid)
    assert state.draws == [(3, 4), (3, 8), (3, 8)] and set(state.history[0]["sampled"]) <= set(reachable)
    whole = simulated(of)
    local = whole.local_events[int(of.agents.counts[0])]
    result = replace(whole, final=state)
    assert [(r.sampled, r.pool, r.count) for r in result.privacy.rounds] == [(3, 4, 1), (3, 8, 2)]
    assert result.privacy.epsilon_global > whole.privacy.epsilon_global and local.is_private


def test_registered_agents_that_are_away_are_missed(tmp_path: Path) -> None:
    of = experiment(run={"rounds": 1, "sampled": 8})
    federation = Federation(of, tmp_path)
    strategy = federation.strategy()
    del federation.grid._contexts[4]
    messages = strategy.configure_train(1, ArrayRecord(), ConfigRecord(), federation.grid)
    strategy.aggregate_train(1, exchange_messages(federation.grid, messages, 10.0))
    state = strategy.coordinator.state
    assert {refusal["agent"] for refusal in state.history[0]["refused"]} == set(federation.dealt[2])
    assert all("not connected" in str(refusal["reason"]) for refusal in state.history[0]["refused"])
    assert state.participations.sum() == 8 - len(federation.dealt[2]) and state.draws == [(8, 8)]


def test_clients_that_leave_as_soon_as_they_were_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool is never empty, which no accountant would know."""
    of = experiment(run={"rounds": 1, "sampled": 3})
    federation = Federation(of, tmp_path, exchange=Exchange(draw_from="connected"))
    nodes = federation.grid.get_node_ids()
    seen: list[list[int]] = []

    def once(grid: LocalGrid) -> list[int]:
        seen.append([] if seen else nodes)
        return seen[-1]

    monkeypatch.setattr(LocalGrid, "get_node_ids", once)
    strategy = federation.strategy()
    messages = strategy.configure_train(1, ArrayRecord(), ConfigRecord(), federation.grid)
    strategy.aggregate_train(1, exchange_messages(federation.grid, messages, 10.0))
    state = strategy.coordinator.state
    assert state.draws == [(3, 8)] and state.round == 1 and not state.history[0]["refused"]


def test_clients_that_never_connect(tmp_path: Path) -> None:
    federation = Federation(experiment(), tmp_path, exchange=Exchange(wait=0.05))
    del federation.grid._contexts[4]
    with pytest.raises(RunStopped, match=r"2 agents did not connect within 0.05 s: agent-2, agent-6"):
        federation.run()


@pytest.mark.parametrize(
    "wrong", [{"timeout": 0}, {"min_replies": 0}, {"attempts": 0}, {"draw_from": "all"}, {"wait": -1}]
)
def test_options_of_the_exchange_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Exchange(**wrong)


def test_what_is_not_private_stays_a_simulation() -> None:
    of = experiment(trainer={"noise": 0.0})
    with pytest.raises(ValueError, match="without noise"):
        simulated(of, in_process(of, app, 2, Exchange()))
