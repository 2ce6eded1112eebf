"""Ratings of items by users, as incomplete columns: values, and which of them were observed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from pri_rfed.data.base import Array, DataSet, Source, at_least
from pri_rfed.data.download import DataFolders, DataNotFound, open_binary

MOVIELENS = "movielens/ratings.dat"
MIDDLE, REACH = 3.0, 2.0
"""Stars 1 .. 5 become values from -1 to 1."""


def incomplete_columns(users: NDArray[np.int64], items: NDArray[np.int64], stars: Array, n: int) -> Array:
    """Records [number of users, 2, n] of ratings [k] each: of every user, in the order of their numbers, the values
    (stars - 3)/2, 0 where there is none; and below them 1 where there is one."""
    _, rows = np.unique(users, return_inverse=True)
    records = np.zeros((rows.max() + 1, 2, n))
    records[rows, 0, items] = (stars - MIDDLE) / REACH
    records[rows, 1, items] = 1.0
    return records


@final
@dataclass(frozen=True, kw_only=True)
class MovieLens(Source):
    """The ratings of MovieLens 1M, where its file is at hand as movielens/ratings.dat (its licence does not allow to
    hand it on): 6040 users' columns [2, items] of values (stars - 3)/2, and of which of them were observed.

    items: the public size of the catalogue, whose numbers run from 1.
    """

    name = "movielens"
    items: int = 3952

    @staticmethod
    def at_hand(folders: DataFolders) -> Path | None:
        """The file, if it is somewhere."""
        return next((path for path in folders.candidates(MOVIELENS) if path.is_file()), None)

    def load(self, folders: DataFolders, rng: np.random.Generator) -> DataSet:
        at_least("items", self.items, 2)
        path = self.at_hand(folders)
        if path is None:
            raise DataNotFound(
                f"{MOVIELENS} is not in {', '.join(map(str, folders.folders))}; take it out of the archive at "
                "https://files.grouplens.org/datasets/movielens/ml-1m.zip and put it there"
            )
        users, movies, stars = read_ratings(path)
        if movies.max() > self.items:
            raise ValueError(f"items = {self.items}: {path} rates movie {movies.max()}")
        records = incomplete_columns(users, movies - 1, stars, self.items)
        return DataSet(records, f"{len(stars)} ratings of {self.items} movies by {len(records)} users of MovieLens")


def read_ratings(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """Users, movies and stars, [k] each, of a file with lines `user::movie::stars::time`, compressed or not. Raises
    ValueError if it is none."""
    with open_binary(path) as file:
        lines = file.read().replace(b"::", b",").decode("ascii", "replace").splitlines()
    try:
        table = np.loadtxt(lines, delimiter=",", usecols=(0, 1, 2), ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path} is no file of lines user::movie::stars::time: {error}") from error
    whole = (table == np.floor(table)).all(axis=1) & (table[:, :2] >= 1).all(axis=1)
    bad = ~(whole & (table[:, 2] >= 1) & (table[:, 2] <= 5))
    if len(table) == 0 or bad.any():
        what = f"line {int(bad.argmax()) + 1} is no rating of 1 to 5 stars" if len(table) else "it is empty"
        raise ValueError(f"{path} is no file of lines user::movie::stars::time: {what}")
    return table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2]


@final
@dataclass(frozen=True, kw_only=True)
class SyntheticRatings(Source):
    """Made-up ratings in the shape of MovieLens 1M: columns [2, items] of users whose tastes have a low rank.

    A user rates at least 20 items (a log-normal number with the mean `mean_ratings`), popular ones more often (the
    popularity of the k-th goes as 1/(k + 50)). Stars are 3.6 + item's own + tastes of that rank + noise, with variances
    0.25, 0.64 and 0.36, rounded to 1 .. 5.
    """

    name = "synthetic-ratings"
    users: int = 6040
    items: int = 3706
    rank: int = 5
    mean_ratings: float = 165.6

    def load(self, folders: DataFolders, rng: np.random.Generator) -> DataSet:
        at_least("users", self.users, 1)
        at_least("items", self.items, 20)
        at_least("rank", self.rank, 1)
        if not 20 < self.mean_ratings <= self.items:
            raise ValueError(f"mean_ratings = {self.mean_ratings}: must be above 20, and at most the number of items")
        spread = 1.0
        numbers = 20 + (self.mean_ratings - 20) * rng.lognormal(-(spread**2) / 2, spread, self.users)
        popularity = -np.log(np.arange(self.items) + 50.0)
        own = 0.5 * rng.standard_normal(self.items)
        tastes = 0.8 / np.sqrt(self.rank) * rng.standard_normal((self.rank, self.items))
        records = np.zeros((self.users, 2, self.items))
        for record, number in zip(records, np.minimum(numbers.astype(int), self.items // 2), strict=True):
            # The items with the largest popularity + Gumbel noise are a draw without replacement.
            seen = np.argpartition(-(popularity + rng.gumbel(size=self.items)), number)[:number]
            stars = 3.6 + own[seen] + rng.standard_normal(self.rank) @ tastes[:, seen]
            stars += 0.6 * rng.standard_normal(number)
            record[0, seen] = (np.clip(np.rint(stars), 1, 5) - MIDDLE) / REACH
            record[1, seen] = 1.0
        total = int(records[:, 1].sum())
        return DataSet(records, f"{total} synthetic ratings of {self.items} items by {self.users} users")
