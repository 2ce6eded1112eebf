"""What a data set is, and a source of one; the sources are in the files beside this one, by name in `SOURCES`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pri_rfed.data.agents import Precision
from pri_rfed.data.download import DataFolders

Array = NDArray[np.float64]


@dataclass(frozen=True)
class DataSet:
    """Records [n, *record_shape], and what they can be divided among agents by: labels [n], natural keys [n].

    held: the records, or with `make` what takes less memory [n, ...], of which it makes them, each of its own row.
    """

    held: NDArray[Any]
    description: str
    labels: NDArray[Any] | None = None
    keys: NDArray[Any] | None = None
    make: Callable[[NDArray[Any]], Array] | None = None

    def __len__(self) -> int:
        return len(self.held)

    def take(self, part: NDArray[np.int64] | slice) -> Array:
        """Some of the records."""
        return self.held[part] if self.make is None else self.make(self.held[part])

    @property
    def records(self) -> Array:
        """All records."""
        return self.take(slice(None))


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """A named data set. The fields of a concrete source are its options.

    precision: what agents hold the records in, once the data set is divided among them (`AgentArrays`). "float32" takes
    half the memory, and rounds each number towards 0 by less than 2^-23 of it; everything is computed in "float64". For
    linear data (principal components, matrix completion) only. Without noise it moves the leading eigenvectors of MNIST
    and of the digits by less than 4e-9 radians after a run, and their cost by less than 1e-7 of itself.
    """

    name: ClassVar[str]
    """Its key in `SOURCES` and in configurations."""
    public: ClassVar[str | None] = None
    """The public data set (`PUBLIC_DATA`) that its files belong to."""

    precision: Precision = "float64"

    @abstractmethod
    def load(self, folders: DataFolders, rng: np.random.Generator) -> DataSet:
        """The data set. Raises ValueError for an option or a file that cannot be used, DataNotFound."""


def at_least(name: str, value: int, least: int) -> None:
    """Raise ValueError where the option is smaller than that."""
    if value < least:
        raise ValueError(f"{name} = {value}: must be at least {least}")
