"""The data of a federation: which agent holds which records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pri_rfed.problems.base import Problem

Array = NDArray[np.float64]
Stored = NDArray[np.floating]
Precision = Literal["float64", "float32"]

_NUMBERS_AT_ONCE = 1 << 21
"""How many numbers of records are looked at together: a bound on memory, where they are copied for that."""


def stored(x: Array | Stored, precision: Precision) -> Stored:
    """The numbers as they are kept: for "float32" each is rounded towards 0, so that none grows in absolute value, by
    less than 2^-23 of it (or, near 0, by less than 2^-149)."""
    if precision == "float64":
        return np.asarray(x, dtype=float)
    with np.errstate(over="ignore"):
        rounded = np.asarray(x, dtype=np.float32)
    grown = np.abs(rounded) > np.abs(x)
    if np.any(grown):
        rounded[grown] = np.nextafter(rounded[grown], np.float32(0))
    return rounded


def misfit(problem: Problem | type[Problem], precision: Precision) -> str | None:
    """What is wrong with holding the problem's records like that; None where nothing is."""
    if precision == "float64" or problem.single_precision:
        return None
    return (
        f"precision = {precision!r}: the records of {problem.name} do not stay what they have to be when their numbers "
        "are rounded; must be 'float64'"
    )


def pieces(agents: int) -> Iterator[slice]:
    """Slices that cover so many agents: what is worked out of millions of them is worked out by pieces, so that it
    takes no memory in proportion."""
    for start in range(0, agents, 1 << 16):
        yield slice(start, start + (1 << 16))


def agents_by_size(counts: NDArray[np.int64]) -> dict[int, int]:
    """How many agents hold each number of records, by ascending number, given every agent's [N]."""
    agents: Counter[int] = Counter()
    for piece in pieces(len(counts)):
        sizes, times = np.unique(counts[piece], return_counts=True)
        agents.update(dict(zip(sizes.tolist(), times.tolist(), strict=True)))
    return dict(sorted(agents.items()))


def most_by_size(counts: NDArray[np.int64], values: NDArray[np.int32]) -> dict[int, int]:
    """For each number of records the largest of the values [N] of the agents that hold as many."""
    most: dict[int, int] = {}
    for piece in pieces(len(counts)):
        sizes, places = np.unique(counts[piece], return_inverse=True)
        largest = np.full(len(sizes), np.iinfo(values.dtype).min, dtype=values.dtype)
        np.maximum.at(largest, places, values[piece])
        for n, value in zip(sizes.tolist(), largest.tolist(), strict=True):
            most[n] = max(most.get(n, value), value)
    return most


@dataclass(frozen=True)
class Records:
    """The records of some agents, side by side: stored [A, n_max, *record_shape], counts [A].

    Row a holds its agent's records first; what follows them is padding, finite, and never counted. `stored` may be in
    single precision; nothing is to compute with it, but with `values` and what `take` returns.
    """

    stored: Stored
    counts: NDArray[np.int64]

    @property
    def values(self) -> Array:
        """All of it in double precision: the same array, or a copy."""
        return np.asarray(self.stored, dtype=float)

    @property
    def mask(self) -> NDArray[np.bool_] | None:
        """Which entries are records, [A, n_max]; None where all are."""
        longest = self.stored.shape[1]
        if (self.counts == longest).all():
            return None
        return np.arange(longest) < self.counts[:, None]

    def take(self, indices: NDArray[np.int64]) -> Array:
        """The records at `indices` [A, b] of each agent, in double precision: [A, b, *record_shape]."""
        agents, longest = self.stored.shape[:2]
        flat = self.stored.reshape(agents * longest, *self.stored.shape[2:])
        return np.asarray(flat.take(indices + longest * np.arange(agents)[:, None], axis=0), dtype=float)


class AgentData(Protocol):
    """What a simulation needs to know of its agents' data; records may be made on demand."""

    @property
    def counts(self) -> NDArray[np.int64]:
        """n_i for every agent, [N]. Public."""

    def records(self, agents: NDArray[np.int64]) -> Records:
        """The records of these agents."""


class AgentArrays:
    """Agents whose records are held in memory: one array [n_i, *record_shape] for each.

    precision: "float32" holds them in half the memory, each number rounded towards 0 (`stored`). Whatever hands out
    records hands them out in double precision.

    Guarantee: rounding takes nothing from it. It changes each record by itself and before anything else, so that
    neighbouring data sets stay neighbours, and what is proved of any records is proved of the rounded ones. Those are
    still what the problem assumes of records: no number grows, hence no norm, and a problem that assumes more, such as
    points of a manifold, is refused (`Problem.single_precision`). All arithmetic is done in double precision: in
    single precision the last addition alone of n contributions of length C may be wrong by n C 2^-24, which is not
    small beside the 2C that one record may change.
    """

    def __init__(
        self, arrays: Iterable[Array | Stored], names: Sequence[str] | None = None, precision: Precision = "float64"
    ):
        if precision not in ("float64", "float32"):
            raise ValueError(f"agents: precision = {precision!r} must be 'float64' or 'float32'")
        held = [stored(a, precision) for a in arrays]
        if len(held) == 0:
            raise ValueError("agents: at least one agent's records are needed, not an empty list")
        shapes = [a.shape for a in held]
        for i, shape in enumerate(shapes):
            if len(shape) < 1 or shape[0] == 0:
                raise ValueError(f"agents: agent {i} has no records (shape {shape}); at least one is needed")
            if shape[1:] != shapes[0][1:]:
                raise ValueError(f"agents: agent {i} has records of shape {shape[1:]}, agent 0 of {shapes[0][1:]}")
        self.precision: Precision = precision
        self.counts = np.array([shape[0] for shape in shapes], dtype=np.int64)
        self.names = list(names) if names is not None else [str(i) for i in range(len(held))]
        if len(self.names) != len(held):
            raise ValueError(f"agents: {len(self.names)} names were given for {len(held)} agents")
        # Side by side once and for all where sizes agree: then a round with everybody copies nothing.
        self._stacked = _side_by_side(held) if (self.counts == self.counts[0]).all() else None
        self._held = held

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, agent: int) -> Array:
        """One agent's records, [n_i, *record_shape]."""
        return np.asarray(self._held[agent], dtype=float)

    @property
    def nbytes(self) -> int:
        """The memory that the records take."""
        return sum(a.nbytes for a in self._held)

    def all_records(self) -> Array:
        """Everybody's records, [sum n_i, *record_shape]: for diagnostics, which no deployed run can have. A copy,
        unless all agents hold as many as each other, in double precision."""
        return np.asarray(self.all_stored(), dtype=float)

    def all_stored(self) -> NDArray[Any]:
        """The same as they are held, for what does not compute with them as they are."""
        if self._stacked is not None:
            return self._stacked.reshape(-1, *self._stacked.shape[2:])
        return np.concatenate(self._held)

    def records(self, agents: NDArray[np.int64]) -> Records:
        counts = self.counts[agents]
        if self._stacked is not None:
            first = int(agents[0])
            in_turn = (np.asarray(agents) == np.arange(first, first + len(agents))).all()
            return Records(self._stacked[first : first + len(agents)] if in_turn else self._stacked[agents], counts)
        # Padded with the agent's own first record, so that the padding is always a valid record.
        longest = int(counts.max())
        return Records(np.stack([self._padded(int(a), longest) for a in agents]), counts)

    def _padded(self, agent: int, longest: int) -> Stored:
        own = self._held[agent]
        if len(own) == longest:
            return own
        return np.concatenate([own, np.broadcast_to(own[:1], (longest - len(own), *own.shape[1:]))])

    def prepared(self, problem: Problem) -> AgentArrays:
        """The agents with their records as the problem uses them (`Problem.prepare_records`); they themselves, if it
        alters none.

        Raises ValueError for a precision that the problem does not take, or naming the agent and its first bad record.
        """
        if wrong := misfit(problem, self.precision):
            raise ValueError(wrong)
        axes = len(problem.record_shape)
        if self._held[0].ndim != 1 + axes:
            raise ValueError(
                f"each agent's records of {problem.name} are an array with {1 + axes} axes, [n, "
                f"{', '.join(map(str, problem.record_shape))}], in a list of one array for each agent; agent 0 "
                f"({self.names[0]}) has an array of shape {self._held[0].shape}"
            )
        if self._stacked is not None and self._unaltered(problem, self._stacked):
            return self
        altered, held = False, list(self._held)
        for i, name in enumerate(self.names):
            own = self[i]
            try:
                new = problem.prepare_records(own)
                if new is not own:
                    altered, held[i] = True, stored(new, self.precision)
                    if held[i] is not new:
                        problem.check_records(np.asarray(held[i], dtype=float))
            except ValueError as error:
                raise ValueError(f"agent {i} ({name}): {error}") from error
        return AgentArrays(held, self.names, self.precision) if altered else self

    @staticmethod
    def _unaltered(problem: Problem, stacked: Stored) -> bool:
        """Whether the problem takes all records [N, n, *record_shape] as they are; many agents at a time."""
        length = max(1, _NUMBERS_AT_ONCE // max(1, stacked[0].size))
        for start in range(0, len(stacked), length):
            part = stacked[start : start + length]
            values = np.asarray(part.reshape(-1, *stacked.shape[2:]), dtype=float)
            try:
                if problem.prepare_records(values) is not values:
                    return False
            except ValueError:  # whose record it is will be found out
                return False
        return True


def _side_by_side(held: list[Stored]) -> Stored:
    """Arrays of one shape as one array, whose rows take their places in the list one by one, so that there are never
    two copies of them all. The last first: what is freed at the end of the heap goes back to the operating system."""
    stacked = np.empty((len(held), *held[0].shape), dtype=held[0].dtype)
    for i in reversed(range(len(held))):
        stacked[i] = held[i]
        held[i] = stacked[i]
    return stacked


class RegisteredAgents:
    """Agents of whom no more is known than their names and how many records each has registered: what a server has."""

    def __init__(self, counts: Sequence[int], names: Sequence[str]):
        if len(counts) == 0 or len(counts) != len(names):
            raise ValueError(f"agents: {len(counts)} agents with {len(names)} names; one at least is needed, named")
        self.counts = np.array(counts, dtype=np.int64)
        self.names = list(names)

    def __len__(self) -> int:
        return len(self.counts)

    def records(self, agents: NDArray[np.int64]) -> Records:
        """Raises ValueError: the records are with the agents."""
        raise ValueError("agents: a server holds none of their records")
