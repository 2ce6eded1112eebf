"""Where random numbers come from.

A simulation is seeded: one independent stream for each (seed, role, round, agent), so that a result depends on neither
the order of the agents, nor the engine, nor the number of processes, and a resumed run needs no saved random state. A
deployed client draws from the operating system's entropy instead, for noise and batches alike: sampling amplifies
privacy only while it is secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Role(IntEnum):
    """What a stream is for. The numbers are part of every seeded result: never change one."""

    DATA = 0
    START = 1
    SERVER = 2
    BATCH = 3
    NOISE = 4
    OUTPUT = 5


def stream(seed: int | None, role: Role, round: int = 0, agent: int = 0) -> np.random.Generator:
    """The stream of (seed, role, round, agent); with seed None a fresh one from the operating system's entropy."""
    if seed is None:
        return np.random.Generator(np.random.PCG64DXSM())
    return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence((seed, int(role), round, agent))))


class AgentStreams:
    """The random numbers of the agents that train in one round: row a of every array comes from agent a's own stream.

    Numbers of one role are drawn in sequence, so an array of K steps holds the same numbers as K arrays of one step.
    """

    def __init__(self, seed: int | None, round: int, agents: Sequence[int]):
        self.seed, self.round, self.agents = seed, round, [int(a) for a in agents]
        self._streams: dict[Role, list[np.random.Generator]] = {}

    def __len__(self) -> int:
        return len(self.agents)

    def generators(self, role: Role) -> list[np.random.Generator]:
        """One generator for each agent."""
        if role not in self._streams:
            self._streams[role] = [stream(self.seed, role, self.round, agent) for agent in self.agents]
        return self._streams[role]

    def normals(self, shape: tuple[int, ...]) -> Array:
        """I.i.d. standard normal numbers, [agents, *shape], from the NOISE streams."""
        out = np.empty((len(self), *shape))
        for row, rng in zip(out, self.generators(Role.NOISE), strict=True):
            rng.standard_normal(out=row)
        return out
