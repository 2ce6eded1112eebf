"""Experiments on the mammals of WordNet in hyperbolic space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import final

import numpy as np

from pri_rfed.data.download import DataFolders
from pri_rfed.data.wordnet import CLOSURE, Hierarchy, PoincareEmbedding, read_closure, reconstruction
from pri_rfed.manifolds import PoincareBall
from pri_rfed.manifolds.base import Array
from pri_rfed.problems import FrechetMean, Problem
from pri_rfed.randomness import Role, stream
from pri_rfed.reproductions.excess_risk import ExcessRisk


@cache
def mammals(folders: DataFolders) -> Hierarchy:
    return read_closure(folders.find("wordnet", CLOSURE))


def _said_of_embedding(graph: Hierarchy, embedding: PoincareEmbedding) -> str:
    quality = reconstruction(graph, embedding.cached(graph))
    return (
        f"The embedding is our own, of {len(graph.words)} words and {len(graph.pairs)} pairs, by Riemannian SGD in "
        f"{embedding.epochs} epochs (mean rank {quality.mean_rank:.1f}, mean average precision "
        f"{quality.mean_average_precision:.2f}), not the pretrained one. Its points were trained jointly: as records "
        "they are not independent of each other, and what a guarantee for one point protects is that point alone, not "
        "a word's relations in the graph."
    )


@final
@dataclass(frozen=True, kw_only=True)
class SamplingPoincare(ExcessRisk):
    """The Fréchet mean of Poincaré embeddings; see `ExcessRisk`. epochs: of the training of the embedding. radius: of
    the public ball about the centre that the training keeps all points in. away: distance from the centre at which a
    run begins, in a random direction."""

    name = "sampling-poincare"
    title = "Excess risk against gradient calls: Fréchet mean of Poincaré embeddings"
    shows = "Figure 3c"
    statement = (
        "DP-RGD is best, and DP-RSVRG matches it in the first iterations; DP-RSVRG has a smaller excess risk than "
        "DP-RSGD after as many gradient calls, above all for small ε."
    )
    data = ("wordnet",)

    epochs: int = 300
    radius: float = PoincareEmbedding.radius
    away: float = 3.0

    @property
    def sets(self) -> Sequence[str]:
        return ("mammals",)

    @property
    def _embedding(self) -> PoincareEmbedding:
        return PoincareEmbedding(epochs=self.epochs, radius=self.radius)

    def load(self, name: str, folders: DataFolders) -> tuple[Problem, Array]:
        points = self._embedding.cached(mammals(folders))
        return FrechetMean(PoincareBall(2), np.zeros(2), self.radius, outside="move"), points

    def start(self, problem: Problem, seed: int) -> Array:
        centre, direction = np.zeros(2), stream(seed, Role.START).standard_normal(2)
        return problem.manifold.exp(
            centre, problem.manifold.from_coordinates(centre, self.away * direction / np.linalg.norm(direction))
        )

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        return (*super().remarks(folders), _said_of_embedding(mammals(folders), self._embedding))
