"""What a published experiment is, to this project.

An experiment is a list of cells (one combination of method, budget, sample size, seed, ...) and a way to measure one.
Everything else, from the progress bar to the page of results, is the same for all (`runner.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from matplotlib.figure import Figure

from pri_rfed.data.download import DataFolders

Cell = Mapping[str, Any]
"""What tells one measurement from the others: texts and numbers."""
Row = Mapping[str, Any]
"""One line of the table: texts, numbers, None."""


class Paper(Enum):
    """The publications whose experiments are here."""

    PRIRFED = "Federated Learning on Riemannian Manifolds with Differential Privacy"
    DP_OPTIMIZATION = "Differentially Private Riemannian Optimization"
    FAST_SAMPLING = "Improved Differentially Private Riemannian Optimization: Fast Sampling and Variance Reduction"
    OVER_MANIFOLDS = "Differential Privacy Over Riemannian Manifolds"
    FEDERATED = "Federated Learning on Riemannian Manifolds"


@dataclass(frozen=True, kw_only=True)
class Reproduction(ABC):
    """One published experiment. The fields of a concrete class are its settings, which come from its configuration
    (configs/reproduce/NAME.toml).

    seeds: how often everything random is repeated, with the seeds 0, 1, ...
    """

    name: ClassVar[str]
    """Its key in `EXPERIMENTS`; begins with prirfed-, optimization-, sampling-, over-manifolds- or federated-, for the
    paper."""
    title: ClassVar[str]
    """What is shown, in a few words: the heading on the page of results."""
    paper: ClassVar[Paper]
    shows: ClassVar[str]
    """Where it is in the publication: "Figure 3", "section 6.2"."""
    statement: ClassVar[str]
    """What the publication says came of it, in our words, in a sentence or two."""
    data: ClassVar[tuple[str, ...]] = ()
    """Names in `PUBLIC_DATA` of the data sets that must be at hand."""
    alone: ClassVar[bool] = False
    """Whether cells must be measured one after the other: where seconds are what is measured."""

    seeds: int = 5

    @abstractmethod
    def cells(self) -> Sequence[Cell]:
        """What is to be measured, in the order of the table. A cell is small, JSON, and different from all others."""

    @abstractmethod
    def measure(self, cell: Cell, folders: DataFolders) -> Sequence[Row]:
        """The lines of the table for one cell, without the cell's own entries. It depends on the settings and the cell
        alone: cells may be measured in any order, and in other processes. What several cells share is cached in the
        module (functools.cache), not passed around."""

    @abstractmethod
    def draw(self, figure: Figure, rows: Sequence[Row]) -> None:
        """The picture, on an empty figure (of `size` inches); axes labelled, log scales where they belong."""

    @abstractmethod
    def compare(self, rows: Sequence[Row]) -> str:
        """How the outcome compares with `statement`, with figures, honest where it differs: a sentence or two."""

    def remarks(self, folders: DataFolders) -> Sequence[str]:
        """What differs from the publication: data that stand in for others, settings its text does not tell, noise."""
        return ()

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the picture in inches."""
        return (5.6, 3.6)
