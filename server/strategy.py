"""The Flower Strategy of PriRFed: carries the coordinator's plans to the clients, and their answers back.

Every decision about points is the coordinator's (`pri_rfed.coordinator`). Here is decided whose reply counts: none is
trusted, each is judged by its header before its numbers are looked at, and what is missing is written down with the
reason.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from pri_rfed.coordinator import Coordinator, RunStopped, State
from pri_rfed.experiment.federation import Exchange
from pri_rfed.wire import DECLINED, RECORD, Answer, Plan, WireError, clean

log = logging.getLogger(__name__)

UNDELIVERED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
"""Errors by which the SuperLink says that a message, or the reply to it, did not come through."""

LONGEST_POLL = 0.05
"""Replies are asked for at least so often, in seconds."""


@dataclass(frozen=True)
class Registered:
    """An agent as the server knows it: its name, how many records it has registered, the node that speaks for it."""

    name: str
    records: int
    node: int


class PriRFed(Strategy):
    """Runs the rounds of a coordinator over a Grid.

    problem, trainer: tables that say both to the clients. run: a name that no other run has. on_state: called with
    every new state, before the next round begins, and before agents are asked with the state to go on from if nothing
    comes of it. watch: called while clients are waited for; raises what makes that vain.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        roster: Sequence[Registered],
        problem: dict[str, Any],
        trainer: dict[str, Any],
        *,
        run: str,
        exchange: Exchange | None = None,
        on_state: Callable[[State], None] | None = None,
        watch: Callable[[], None] | None = None,
    ):
        self.coordinator, self.roster = coordinator, list(roster)
        self.problem, self.trainer, self.run_name = problem, trainer, run
        self.exchange = Exchange() if exchange is None else exchange
        self.on_state, self.watch = on_state, watch
        self._index = {agent.name: i for i, agent in enumerate(self.roster)}
        if len(self._index) < len(self.roster):
            raise ValueError("roster: two agents have the same name")
        if [agent.records for agent in self.roster] != coordinator.counts.tolist():
            raise ValueError("roster: its numbers of records are not the coordinator's")
        self._chosen: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._pool: int | None = None
        self._sent: dict[int, tuple[Plan, Message]] = {}
        self._began = 0.0

    def summary(self) -> None:
        log.info("PriRFed: %d of %d agents in a round", self.coordinator.sampled, len(self.roster))

    # One round ------------------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Draw agents, and make one message for each client that is to train some of them."""
        pool, from_connected = None, self.exchange.draw_from == "connected"
        # Drawn from those that were waited for: of those connected a moment later there might be none.
        connected = self._await_agents(grid, self.exchange.min_replies) if from_connected else set(grid.get_node_ids())
        self._began, state = time.perf_counter(), self.coordinator.state
        if from_connected:
            pool = np.array([i for i, agent in enumerate(self.roster) if agent.node in connected], dtype=np.int64)
        self._pool = None if pool is None else len(pool)
        self._chosen = self.coordinator.draw(pool)
        asked: dict[int, dict[str, int]] = {}
        for i in self._chosen.tolist():
            agent = self.roster[i]
            if agent.node in connected:
                asked.setdefault(agent.node, {})[agent.name] = agent.records
        self._sent = {}
        for node, agents in asked.items():
            plan = Plan(
                self.run_name, state.round, len(state.failed), self.problem, self.trainer, state.point, agents
            )
            message = Message(
                RecordDict({RECORD: ConfigRecord(dict(plan.pack()))}),
                dst_node_id=node,
                message_type=MessageType.TRAIN,
                group_id=str(state.round + 1),
                ttl=self.exchange.timeout,
            )
            self._sent[node] = plan, message
        if self.on_state is not None:
            asked_agents = sorted(self._index[name] for plan, _ in self._sent.values() for name in plan.agents)
            self.on_state(self.coordinator.abandoned(self._chosen, asked_agents, pool=self._pool))
        return [message for _, message in self._sent.values()]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Judge the replies, and have the coordinator close the round.

        Raises RunStopped when the round was drawn in vain too often.
        """
        uploads: dict[int, NDArray[np.float64]] = {}
        missing = {i: "its client is not connected" for i in self._chosen.tolist()}
        untrained, silent = set(missing), set(missing)
        for plan, _ in self._sent.values():
            for name in plan.agents:
                missing[self._index[name]] = f"no reply within {self.exchange.timeout:g} s"
                untrained.discard(self._index[name])
        plans = {message.metadata.message_id: plan for plan, message in self._sent.values()}
        for reply in replies:
            if reply.metadata.reply_to_message_id not in plans:
                log.warning("a reply to no message of this round, or a second one, was dropped")
                continue
            plan = plans.pop(reply.metadata.reply_to_message_id)
            asked = {self._index[name] for name in plan.agents}
            code = reply.error.code if reply.has_error() else None
            if code == DECLINED:
                missing |= dict.fromkeys(asked, f"its client declined: {clean(reply.error.reason)}")
                untrained |= asked
                continue
            if code not in UNDELIVERED:
                silent -= asked
            try:
                answer = _answer(reply, plan)
            except WireError as error:
                missing |= dict.fromkeys(asked, f"its client's reply was refused: {error}")
                continue
            for name in plan.agents:
                i = self._index[name]
                if name in answer.points:
                    uploads[i] = answer.points[name]
                    del missing[i]
                elif name in answer.refused:
                    missing[i] = f"it declined: {answer.refused[name]}"
                    untrained.add(i)
                    silent.add(i)
                else:
                    missing[i] = "its training failed"
        return self._close(uploads, missing, sorted(untrained), silent)

    def _close(
        self, uploads: dict[int, NDArray[np.float64]], missing: dict[int, str], untrained: list[int], silent: set[int]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        coordinator = self.coordinator
        seconds = time.perf_counter() - self._began
        done = coordinator.close(
            self._chosen,
            uploads,
            seconds=seconds,
            pool=self._pool,
            missing=missing,
            untrained=untrained,
            silent=silent,
            min_replies=self.exchange.min_replies,
        )
        state = coordinator.state
        if self.on_state is not None:
            self.on_state(state)
        draw = state.history[-1] if done else state.failed[-1]
        for refusal in draw["refused"]:
            log.warning(
                "round %d: without %s: %s",
                state.round if done else state.round + 1,
                self.roster[int(refusal["agent"])].name,
                refusal["reason"],
            )
        if not done and len(state.failed) >= self.exchange.attempts:
            reasons = sorted({str(refusal["reason"]) for refusal in draw["refused"]})
            raise RunStopped(
                f"round {state.round + 1} was drawn {len(state.failed)} times, and never had the "
                f"{self.exchange.min_replies} usable replies that min_replies asks for; last: {'; '.join(reasons)}"
            )
        if not done:
            return None, None
        replies = len(draw["sampled"]) - len(draw["refused"])
        return ArrayRecord({"point": Array(state.point)}), MetricRecord({"replies": replies, "seconds": seconds})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Nothing: an evaluation on an agent's records would leave it without a mechanism."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None

    # All rounds -----------------------------------------------------------------------------------------------------

    def run(self, grid: Grid) -> State:
        """All rounds that are left; what `Strategy.start` does, without its pause of 3 s in every round, and repeating
        rounds that come to nothing.

        Raises RunStopped when it cannot go on.
        """
        self.summary()
        connected = self.exchange.draw_from == "connected"
        self._await_agents(grid, self.coordinator.sampled if connected else len(self.roster))
        nothing = ArrayRecord(), ConfigRecord()
        while not self.coordinator.finished:
            messages = self.configure_train(self.coordinator.state.round + 1, *nothing, grid)
            replies = exchange_messages(grid, messages, self.exchange.timeout)
            self.aggregate_train(self.coordinator.state.round + 1, replies)
        return self.coordinator.state

    def _await_agents(self, grid: Grid, enough: int) -> set[int]:
        """Wait until the clients of so many agents are connected; the nodes that then are."""
        deadline = time.monotonic() + self.exchange.wait
        while True:
            connected = set(grid.get_node_ids())
            away = [agent.name for agent in self.roster if agent.node not in connected]
            if len(self.roster) - len(away) >= enough:
                return connected
            if time.monotonic() > deadline:
                shown = ", ".join(away[:5]) + (", …" if len(away) > 5 else "")
                raise RunStopped(f"{len(away)} agents did not connect within {self.exchange.wait:g} s: {shown}")
            if self.watch is not None:
                self.watch()
            time.sleep(LONGEST_POLL)


def _answer(reply: Message, plan: Plan) -> Answer:
    """What a reply says. Raises WireError where it is no answer to `plan`."""
    if reply.has_error():
        raise WireError(f"error {reply.error.code}: {clean(reply.error.reason or 'no reason given')}")
    records = reply.content
    if list(records) != [RECORD] or not isinstance(records[RECORD], ConfigRecord):
        raise WireError("it is not one record of the project's")
    return Answer.unpack(records[RECORD], plan)


def exchange_messages(grid: Grid, messages: Sequence[Message], timeout: float) -> list[Message]:
    """Send the messages and collect their replies, until all have come or the time is over."""
    if not messages:
        return []
    waiting = {message_id for message_id in grid.push_messages(messages) if message_id}
    began = time.monotonic()
    replies: list[Message] = []
    while waiting and time.monotonic() < began + timeout:
        pulled = list(grid.pull_messages(waiting))
        replies += pulled
        waiting -= {reply.metadata.reply_to_message_id for reply in pulled}
        if waiting and not pulled:
            time.sleep(min(LONGEST_POLL, (time.monotonic() - began) / 5))
    return replies
