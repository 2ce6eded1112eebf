"""The data of a federation: which agent holds which records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


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


def most_by_size(counts: NDArray[np.int64], values: NDArray[np.int64]) -> dict[int, int]:
    """For each number of records the largest of the values [N] of the agents that hold as many."""
    most: dict[int, int] = {}
    for piece in pieces(len(counts)):
        sizes, places = np.unique(counts[piece], return_inverse=True)
        largest = np.full(len(sizes), np.iinfo(np.int64).min)
        np.maximum.at(largest, places, values[piece])
        for n, value in zip(sizes.tolist(), largest.tolist(), strict=True):
            most[n] = max(most.get(n, value), value)
    return most


@dataclass(frozen=True)
class Records:
    """The records of some agents, side by side: values [A, n_max, *record_shape], counts [A].

    Row a holds its agent's records first; what follows them is padding, finite, and never counted.
    """

    values: Array
    counts: NDArray[np.int64]

    @property
    def mask(self) -> NDArray[np.bool_] | None:
        """Which entries are records, [A, n_max]; None where all are."""
        longest = self.values.shape[1]
        if (self.counts == longest).all():
            return None
        return np.arange(longest) < self.counts[:, None]

    def take(self, indices: NDArray[np.int64]) -> Array:
        """The records at `indices` [A, b] of each agent: [A, b, *record_shape]."""
        agents, longest = self.values.shape[:2]
        flat = self.values.reshape(agents * longest, *self.values.shape[2:])
        return flat.take(indices + longest * np.arange(agents)[:, None], axis=0)


class AgentData(Protocol):
    """What a simulation needs to know of its agents' data; records may be made on demand."""

    @property
    def counts(self) -> NDArray[np.int64]:
        """n_i for every agent, [N]. Public."""

    def records(self, agents: NDArray[np.int64]) -> Records:
        """The records of these agents."""


class AgentArrays:
    """Agents whose records are held in memory: one array [n_i, *record_shape] for each."""

    def __init__(self, arrays: Sequence[Array], names: Sequence[str] | None = None):
        if len(arrays) == 0:
            raise ValueError("agents: at least one agent's records are needed, not an empty list")
        arrays = [np.asarray(a, dtype=float) for a in arrays]
        for i, a in enumerate(arrays):
            if a.ndim < 1 or len(a) == 0:
                raise ValueError(f"agents: agent {i} has no records (shape {a.shape}); at least one is needed")
            if a.shape[1:] != arrays[0].shape[1:]:
                raise ValueError(
                    f"agents: agent {i} has records of shape {a.shape[1:]}, agent 0 of {arrays[0].shape[1:]}"
                )
        self.counts = np.array([len(a) for a in arrays], dtype=np.int64)
        self.names = list(names) if names is not None else [str(i) for i in range(len(arrays))]
        if len(self.names) != len(arrays):
            raise ValueError(f"agents: {len(self.names)} names were given for {len(arrays)} agents")
        # Side by side once and for all where sizes agree: then a round with everybody copies nothing.
        self._stacked = np.stack(arrays) if (self.counts == self.counts[0]).all() else None
        self._arrays = list(self._stacked) if self._stacked is not None else arrays

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, agent: int) -> Array:
        """One agent's records, [n_i, *record_shape]."""
        return self._arrays[agent]

    @property
    def side_by_side(self) -> bool:
        """Whether all agents hold as many records as each other, so that `all_records` copies nothing."""
        return self._stacked is not None

    def all_records(self) -> Array:
        """Everybody's records, [sum n_i, *record_shape]: for diagnostics, which no deployed run can have."""
        if self._stacked is not None:
            return self._stacked.reshape(-1, *self._stacked.shape[2:])
        return np.concatenate(self._arrays)

    def records(self, agents: NDArray[np.int64]) -> Records:
        counts = self.counts[agents]
        if self._stacked is not None:
            everybody = len(agents) == len(self) and (np.asarray(agents) == np.arange(len(self))).all()
            return Records(self._stacked if everybody else self._stacked[agents], counts)
        # Padded with the agent's own first record, so that the padding is always a valid record.
        longest = int(counts.max())
        values = np.stack([self._padded(int(a), longest) for a in agents])
        return Records(values, counts)

    def _padded(self, agent: int, longest: int) -> Array:
        own = self._arrays[agent]
        if len(own) == longest:
            return own
        return np.concatenate([own, np.broadcast_to(own[:1], (longest - len(own), *own.shape[1:]))])


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
