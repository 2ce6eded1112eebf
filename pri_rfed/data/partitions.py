"""How a data set is divided among agents. Every record goes to at most one agent.

(A record that two agents hold would break parallel composition: its privacy loss would add up.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from pri_rfed.data.base import DataSet

Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Partition(ABC):
    """Base of all partitions.

    per_agent: the most records an agent keeps; the others are left out. None: all.
    equal: whether everybody is cut to the size of the smallest agent.
    """

    name: ClassVar[str]
    """Its key in `PARTITIONS` and in configurations."""

    per_agent: int | None = None
    equal: bool = False

    def __post_init__(self) -> None:
        if self.per_agent is not None and self.per_agent < 1:
            raise ValueError(f"per_agent = {self.per_agent}: must be at least 1")

    def split(self, data: DataSet, rng: np.random.Generator) -> tuple[list[Indices], list[str]]:
        """The indices of every agent's records, in random order, and the agents' names. Raises ValueError."""
        parts, names = self._split(data, rng)
        limit = min(map(len, parts)) if self.equal else max(map(len, parts))
        if self.per_agent is not None:
            limit = min(limit, self.per_agent)
        return [rng.permutation(part)[:limit] for part in parts], names

    @abstractmethod
    def _split(self, data: DataSet, rng: np.random.Generator) -> tuple[list[Indices], list[str]]: ...


def _check_agents(agents: int, needed: int, records: int) -> None:
    if agents < 1:
        raise ValueError(f"agents = {agents}: must be at least 1")
    if needed > records:
        raise ValueError(f"agents = {agents}: they need {needed} records, and the data set has {records}")


@final
@dataclass(frozen=True, kw_only=True)
class IID(Partition):
    """A uniformly random division into parts of equal size (to within one record)."""

    name = "iid"
    agents: int

    def _split(self, data: DataSet, rng: np.random.Generator) -> tuple[list[Indices], list[str]]:
        records = len(data)
        _check_agents(self.agents, self.agents * (self.per_agent or 1), records)
        parts = np.array_split(rng.permutation(records), self.agents)
        return parts, [str(i) for i in range(self.agents)]


@final
@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Each label's records go to the agents in proportions drawn from a symmetric Dirichlet(alpha).

    The smaller alpha, the fewer labels an agent sees. An agent left with fewer than `minimum` records is filled up with
    random records of whoever has most.
    """

    name = "dirichlet"
    agents: int
    alpha: float
    minimum: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (np.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"alpha = {self.alpha}: must be a positive finite number")
        if self.minimum < 1:
            raise ValueError(f"minimum = {self.minimum}: must be at least 1")

    def _split(self, data: DataSet, rng: np.random.Generator) -> tuple[list[Indices], list[str]]:
        if data.labels is None:
            raise ValueError("name = 'dirichlet': the data set has no labels to divide by")
        _check_agents(self.agents, self.agents * self.minimum, len(data))
        parts: list[list[int]] = [[] for _ in range(self.agents)]
        for label in np.unique(data.labels):
            members = rng.permutation(np.flatnonzero(data.labels == label))
            shares = rng.dirichlet(np.full(self.agents, self.alpha))
            cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(int)
            for part, chosen in zip(parts, np.split(members, cuts), strict=True):
                part.extend(chosen.tolist())
        for part in parts:
            while len(part) < self.minimum:
                richest = max(parts, key=len)
                part.append(richest.pop(int(rng.integers(len(richest)))))
        return [np.array(part, dtype=np.int64) for part in parts], [str(i) for i in range(self.agents)]


@final
@dataclass(frozen=True, kw_only=True)
class Natural(Partition):
    """One agent for each natural key of the data set: a person, a site, a recording session."""

    name = "natural"

    def _split(self, data: DataSet, rng: np.random.Generator) -> tuple[list[Indices], list[str]]:
        if data.keys is None:
            raise ValueError("name = 'natural': the data set has no natural key to divide by")
        names = sorted(set(data.keys.tolist()))
        return [np.flatnonzero(data.keys == key) for key in names], names


PARTITIONS: dict[str, type[Partition]] = {cls.name: cls for cls in (IID, Dirichlet, Natural)}
