"""What a data set is, and a source of one; the sources are in the files beside this one, by name in `SOURCES`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pri_rfed.data.download import DataFolders

Array = NDArray[np.float64]


@dataclass(frozen=True)
class DataSet:
    """Records [n, *record_shape], and what they can be divided among agents by: labels [n], natural keys [n]."""

    records: Array
    description: str
    labels: NDArray[Any] | None = None
    keys: NDArray[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """A named data set. The fields of a concrete source are its options."""

    name: ClassVar[str]
    """Its key in `SOURCES` and in configurations."""
    public: ClassVar[str | None] = None
    """The public data set (`PUBLIC_DATA`) that its files belong to."""

    @abstractmethod
    def load(self, folders: DataFolders, rng: np.random.Generator) -> DataSet:
        """The data set. Raises ValueError for an option or a file that cannot be used, DataNotFound."""


def at_least(name: str, value: int, least: int) -> None:
    """Raise ValueError where the option is smaller than that."""
    if value < least:
        raise ValueError(f"{name} = {value}: must be at least {least}")
