"""Where random numbers come from.

A simulation is seeded: one independent stream for each (seed, role, round, agent), so that a result depends on neither
the order of the agents, nor the engine, nor the number of processes, and a resumed run needs no saved random state. A
deployed client draws from the operating system's entropy instead, for noise and batches alike: sampling amplifies
privacy only while it is secret.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
    SERVER_NOISE = 6


def stream(seed: int | None, role: Role, round: int = 0, agent: int = 0) -> np.random.Generator:
    """The stream of (seed, role, round, agent); with seed None a fresh one from the operating system's entropy."""
    if seed is None:
        return np.random.Generator(np.random.PCG64DXSM())
    words = (seed, int(role), round, agent)
    # As an array it is the same seed, made in a third of the time; numbers beyond 32 bits fill several words of it.
    entropy = np.array(words, dtype=np.uint32) if max(words) < 1 << 32 else words
    return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(entropy)))


class AgentStreams:
    """The random numbers of the agents that train in one round: row a of every array comes from agent a's own stream.

    Numbers of one role are drawn in sequence: what a step gets does not depend on how many steps are drawn at a time.
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

    def normals(self, shape: tuple[int, ...], steps: int) -> Iterator[Array]:
        """For each step i.i.d. standard normal numbers [agents, *shape], from the NOISE streams."""
        numbers = max(1, len(self) * math.prod(shape))
        for length in _chunks(steps, numbers):
            drawn = np.empty((len(self), length, *shape))
            for row, rng in zip(drawn, self.generators(Role.NOISE), strict=True):
                rng.standard_normal(out=row)
            yield from np.swapaxes(drawn, 0, 1)

    def batches(self, counts: NDArray[np.int64], size: int, steps: int) -> Iterator[NDArray[np.int64]]:
        """For each step the indices [agents, size] of a batch of every agent's records 0..counts[a]-1, each set of so
        many records equally likely, none twice; from the BATCH streams.

        Raises ValueError if an agent has fewer than `size` records.
        """
        longest = int(np.max(counts))
        if size < 1 or size > int(np.min(counts)):
            raise ValueError(f"batches: size = {size} must lie between 1 and the fewest records, {int(np.min(counts))}")
        for length in _chunks(steps, len(self) * (size if size == 1 else longest)):
            draws = np.empty((len(self), length, size), dtype=np.int64)
            places = np.arange(size)
            for row, rng, n in zip(draws, self.generators(Role.BATCH), counts, strict=True):
                # The draw for place i is uniform on i..n-1.
                row[...] = rng.integers(0, n - places, size=(length, size)) + places
            if size > 1:
                draws = _partial_shuffle(draws.reshape(-1, size), longest).reshape(draws.shape)
            yield from np.swapaxes(draws, 0, 1)

    def poisson_masks(self, counts: NDArray[np.int64], rates: Array, steps: int) -> Iterator[NDArray[np.bool_]]:
        """For each step which records are in the batch, [agents, longest count]: each record of agent a independently
        with probability rates[a], padding never; from the BATCH streams."""
        longest = int(np.max(counts))
        for length in _chunks(steps, len(self) * longest):
            masks = np.zeros((len(self), length, longest), dtype=bool)
            for row, rng, n, rate in zip(masks, self.generators(Role.BATCH), counts, rates, strict=True):
                row[:, :n] = rng.random((length, n)) < rate
            yield from np.swapaxes(masks, 0, 1)

    def indices(self, among: int) -> NDArray[np.int64]:
        """One number in 0..among-1 for each agent, uniform, from the OUTPUT streams."""
        return np.array([rng.integers(among) for rng in self.generators(Role.OUTPUT)], dtype=np.int64)


_CHUNK_NUMBERS = 1 << 20


def _chunks(steps: int, numbers: int) -> Iterator[int]:
    """Lengths that add up to `steps`, each so short that length * numbers stays small."""
    length = max(1, _CHUNK_NUMBERS // max(1, numbers))
    for start in range(0, steps, length):
        yield min(length, steps - start)


def _partial_shuffle(draws: NDArray[np.int64], longest: int) -> NDArray[np.int64]:
    """The first places of a Fisher-Yates shuffle of 0..longest-1 in every row; place i swaps with draws[:, i]."""
    deck = np.tile(np.arange(longest, dtype=np.int32), (len(draws), 1))
    rows = np.arange(len(draws))
    chosen = np.empty_like(draws)
    for i in range(draws.shape[1]):
        place = draws[:, i]
        chosen[:, i] = deck[rows, place]
        deck[rows, place] = deck[:, i]
    return chosen
