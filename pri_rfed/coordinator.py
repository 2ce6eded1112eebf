"""The server's part of a run, the same in a simulation and in a real federation: whom it draws, what it makes of the
uploads, and what it writes down.

(prirfed.txt, Algorithm 1, without the local training)
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from pri_rfed.aggregation import Aggregation
from pri_rfed.files import read_arrays, write_atomically
from pri_rfed.manifolds.base import Array
from pri_rfed.problems.base import Problem
from pri_rfed.randomness import Role, stream


class Draw(TypedDict, total=False):
    """Agents that were drawn to train, and those that the server had to do without.

    pool: out of how many they were drawn; left out where it was all agents.
    """

    sampled: list[int]
    pool: int
    refused: list[dict[str, int | str]]


class RoundRecord(Draw, total=False):
    """What is written down of round 1, 2, ..., T.

    repeated: draws for this round that came to nothing, because too few agents answered. `cost` to `distance` are of
    the point after the round, on the records of all agents: diagnostics that are not private, and that no deployed run
    could have. They are left out of the rounds that are not evaluated.
    """

    round: int
    repeated: list[Draw]
    aggregation: dict[str, float]
    seconds: float
    cost: float
    gradient_norm: float
    excess_risk: float
    distance: float


def draws_of(rounds: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
    """Every time that agents were drawn for these rounds, also those that came to nothing, as a `Draw`."""
    for record in rounds:
        yield from (*record.get("repeated", ()), record)


@dataclass(frozen=True)
class State:
    """A run after `round` rounds: all that it takes to go on. Random streams are keyed by round, so none is saved."""

    round: int
    point: Array
    participations: NDArray[np.int32]
    """How often each agent has released something, [N]. (Of millions of agents this is what takes memory.)"""
    history: tuple[RoundRecord, ...] = ()
    drawn: Array | None = None
    """The outer iterate that a uniform output has chosen, once it was met."""
    failed: tuple[Draw, ...] = ()
    """Draws for the next round that came to nothing."""
    plan: str = ""
    """What the rounds were run by, in words: only the same plan may go on, or its accounting would not hold."""

    @property
    def output(self) -> Array:
        """What the run puts out if it ends here."""
        return self.point if self.drawn is None else self.drawn

    @property
    def draws(self) -> list[tuple[int, int]]:
        """For every time that agents were drawn: how many, out of how many."""
        agents = len(self.participations)
        return [
            (len(draw["sampled"]), draw.get("pool", agents)) for draw in (*draws_of(self.history), *self.failed)
        ]

    def save(self, path: str | Path) -> None:
        """Write it to one file, replacing the file as a whole or not at all."""
        arrays: dict[str, Any] = {
            "round": self.round,
            "point": self.point,
            "participations": self.participations,
            "history": json.dumps(self.history),
            "failed": json.dumps(self.failed),
            "plan": self.plan,
        }
        if self.drawn is not None:
            arrays["drawn"] = self.drawn
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        write_atomically(Path(path), buffer.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> State:
        """The inverse of `save`. Raises ValueError if the file is not one of these."""
        try:
            names = ("round", "point", "participations", "history", "failed", "plan")
            held = read_arrays(Path(path), names, optional=("drawn",))
            return cls(
                int(held["round"]),
                held["point"],
                held["participations"].astype(np.int32),
                tuple(json.loads(str(held["history"]))),
                held.get("drawn"),
                tuple(json.loads(str(held["failed"]))),
                str(held["plan"]),
            )
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is not the state of a run: {error}") from error


def sample_agents(
    seed: int | None, round: int, sampled: int, pool: int | NDArray[np.int64], attempt: int = 0
) -> NDArray[np.int64]:
    """The server's choice for a round: `sampled` of the agents 0..pool-1, or of those in an array, uniform without
    replacement, in ascending order. Each attempt at a round has its own choice."""
    size = pool if isinstance(pool, int) else len(pool)
    if sampled == size:
        places = np.arange(size)
    else:
        places = np.sort(stream(seed, Role.SERVER, round, attempt).choice(size, size=sampled, replace=False))
    return places if isinstance(pool, int) else np.asarray(np.sort(pool)[places], dtype=np.int64)


def start_point(problem: Problem, seed: int | None) -> Array:
    """Where a run of this seed begins when it is not told."""
    return problem.start(stream(seed, Role.START))


class RunStopped(RuntimeError):
    """A run cannot go on: its agents cannot be reached, or do not answer. It can be resumed from its last state."""


class Coordinator:
    """Runs the server's part round by round: `draw` agents, let them train, `close` the round with what they uploaded.

    Of the agents it knows nothing but how many records each is registered with (counts [N], public).
    evaluate: diagnostics of a point, written down at every `evaluate_every` rounds and after the last one; not private.

    Its `state` can be saved and handed to another one, which goes on as this one would have. plan: goes into the state.
    """

    def __init__(
        self,
        problem: Problem,
        counts: NDArray[np.int64],
        aggregation: Aggregation,
        *,
        rounds: int,
        sampled: int,
        seed: int | None,
        start: Array | None = None,
        output: Literal["last", "uniform"] = "last",
        state: State | None = None,
        plan: str = "",
        evaluate: Callable[[Array], RoundRecord] | None = None,
        evaluate_every: int = 1,
    ):
        self.problem, self.counts, self.aggregation = problem, np.asarray(counts), aggregation
        self.rounds, self.sampled, self.seed = rounds, sampled, seed
        self._evaluate, self._evaluate_every = evaluate, evaluate_every
        self._output_round = int(stream(seed, Role.SERVER, rounds).integers(rounds)) if output == "uniform" else None
        if state is None:
            point = start_point(problem, seed) if start is None else np.asarray(start, dtype=float)
            state = State(0, point, np.zeros(len(self.counts), dtype=np.int32), plan=plan)
        self.state = state

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return self.state.round >= self.rounds

    def draw(self, pool: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """The agents that are to train from `state.point` in round `state.round`: as many as are to be sampled, or all
        of `pool` (default: all agents) if that holds fewer."""
        agents = len(self.counts) if pool is None else pool
        size = len(self.counts) if pool is None else len(pool)
        return sample_agents(self.seed, self.state.round, min(self.sampled, size), agents, len(self.state.failed))

    def abandoned(self, chosen: NDArray[np.int64], asked: Sequence[int], *, pool: int | None = None) -> State:
        """The state to go on from if the process ends before the round is closed: to be saved before the first of the
        chosen agents is asked. All that are `asked` count as having taken part, and the round is drawn anew: the same
        draw released twice would be a draw that no accountant knows."""
        refused: list[dict[str, int | str]] = [
            {"agent": agent, "reason": "the server ended before the round was closed"} for agent in chosen.tolist()
        ]
        draw = self._draw_record(chosen, refused, pool)
        return replace(self.state, participations=self._after(asked), failed=(*self.state.failed, draw))

    def _draw_record(self, chosen: NDArray[np.int64], refused: list[dict[str, int | str]], pool: int | None) -> Draw:
        draw: Draw = {"sampled": chosen.tolist(), "refused": refused}
        if pool is not None and pool != len(self.counts):
            draw["pool"] = pool
        return draw

    def _after(self, trained: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int32]:
        """How often each agent has released something, once these have trained."""
        participations = self.state.participations.copy()
        participations[np.asarray(trained, dtype=np.int64)] += 1
        return participations

    def close(
        self,
        chosen: NDArray[np.int64],
        uploads: Array | Mapping[int, Array],
        *,
        seconds: float,
        pool: int | None = None,
        missing: Mapping[int, str] | None = None,
        untrained: Sequence[int] = (),
        silent: Collection[int] = (),
        min_replies: int = 0,
    ) -> bool:
        """Take up what the chosen agents uploaded (rows in their order, or by agent), and go on to the next round.

        pool: out of how many they were drawn. missing: why there is no upload of some. untrained: those of them that
        certainly released nothing; all others are counted as having taken part, whether their reply came or not.
        silent: those of them that nothing came from, for a reason that has nothing to do with their records.

        Returns whether the round is done: if not, fewer than `min_replies` uploads were usable, and it is to be drawn
        anew. Where the aggregation is the mechanism, a draw in vain would tell of uploads without noise; then all that
        are not silent count as replies, and what cannot be used of them is the 0 that the mechanism is told of.
        """
        state, manifold = self.state, self.problem.manifold
        missing = {} if missing is None else missing
        if isinstance(uploads, Mapping):
            nothing = np.full(manifold.point_shape, np.nan)
            uploads = np.stack([uploads.get(int(agent), nothing) for agent in chosen])
        aggregate = self.aggregation.aggregate(
            manifold,
            state.point,
            chosen.tolist(),
            uploads,
            self.counts[chosen],
            stream(self.seed, Role.SERVER_NOISE, state.round),
        )
        refused: list[dict[str, int | str]] = [
            {"agent": refusal.agent, "reason": missing.get(refusal.agent, refusal.reason)}
            for refusal in aggregate.refused
        ]
        participations = self._after(np.setdiff1d(chosen, np.asarray(untrained, dtype=np.int64)))
        draw = self._draw_record(chosen, refused, pool)
        is_mechanism = self.aggregation.event(len(chosen), len(self.counts)) is not None
        if len(chosen) - len(silent if is_mechanism else refused) < min_replies:
            self.state = replace(state, participations=participations, failed=(*state.failed, draw))
            return False

        record: RoundRecord = {"round": state.round + 1, **draw, "seconds": seconds}
        if state.failed:
            record["repeated"] = list(state.failed)
        if aggregate.info:
            record["aggregation"] = aggregate.info
        done = state.round + 1
        if self._evaluate is not None and (done % self._evaluate_every == 0 or done == self.rounds):
            record.update(self._evaluate(aggregate.point))
        drawn = state.point if state.round == self._output_round else state.drawn
        self.state = State(done, aggregate.point, participations, (*state.history, record), drawn, plan=state.plan)
        return True
