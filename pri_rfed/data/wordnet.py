"""The mammals of WordNet: which word is a kind of which, hyperbolic embeddings trained from that, and features."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from pri_rfed.data import download
from pri_rfed.data.base import Array, DataSet, Source, at_least
from pri_rfed.data.download import DataFolders
from pri_rfed.files import read_arrays, write_atomically
from pri_rfed.manifolds.poincare_ball import PoincareBall
from pri_rfed.problems.structured_prediction import kernel_weights

CLOSURE = "wordnet/mammal_closure.tsv"
"""Where the closure lies in a data folder."""
DICTIONARY = Path("/usr/share/wordnet/data.noun")
"""WordNet's nouns, where Debian's package wordnet-base puts them."""
ROOT = "mammal.n.01"
LEFT_OUT = frozenset({"tusker.n.01", "female_mammal.n.01"})
"""What the published pre-processing leaves out below the root."""


# The graph ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """Words in alphabetical order, and pairs [m, 2] of their indices: the first is a kind of the second, over any
    number of generations."""

    words: tuple[str, ...]
    pairs: NDArray[np.int64]

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> Hierarchy:
        """From pairs of words; a word with itself is left out. Raises ValueError if nothing is left."""
        kept = sorted({(a, b) for a, b in pairs if a != b})
        if not kept:
            raise ValueError("a hierarchy needs at least one pair of words")
        words = tuple(sorted({word for pair in kept for word in pair}))
        at = {word: i for i, word in enumerate(words)}
        return cls(words, np.array([(at[a], at[b]) for a, b in kept], dtype=np.int64))

    def index(self, word: str) -> int:
        """The place of a word: horse.n.01, or horse for its first meaning that is here. Raises ValueError."""
        found = [i for i, known in enumerate(self.words) if known == word or known.rsplit(".", 2)[0] == word]
        if not found:
            raise ValueError(f"word = {word!r}: is not in the hierarchy; such words are {', '.join(self.words[:3])}")
        return found[0]

    def related(self) -> NDArray[np.bool_]:
        """Whether i is a kind of j, [n, n]."""
        out = np.zeros((len(self.words),) * 2, dtype=bool)
        out[self.pairs[:, 0], self.pairs[:, 1]] = True
        return out

    def parents(self) -> NDArray[np.int64]:
        """The pairs with nothing in between."""
        related = self.related()
        between = related.astype(np.float32) @ related.astype(np.float32)
        return self.pairs[between[self.pairs[:, 0], self.pairs[:, 1]] == 0]

    def to_tsv(self) -> bytes:
        """The file that `read_closure` reads."""
        lines = [f"{self.words[a]}\t{self.words[b]}\n" for a, b in self.pairs]
        return ("id1\tid2\n" + "".join(lines)).encode()


def read_closure(path: Path) -> Hierarchy:
    """The hierarchy in a table with two columns, a word and what it is a kind of (header id1, id2). Raises
    ValueError if it is none."""
    with download.open_binary(path) as file:
        header, *lines = io.TextIOWrapper(file, encoding="utf-8").read().splitlines()
    if header.split("\t")[:2] != ["id1", "id2"]:
        raise ValueError(f"{path} is no closure: its first line is {header[:60]!r}")
    pairs = [tuple(line.split("\t")[:2]) for line in lines if line]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"{path}: every line needs two words")
    return Hierarchy.of(pairs)  # type: ignore[arg-type]


def closure_of(dictionary: Path, root: str = ROOT, left_out: frozenset[str] = LEFT_OUT) -> Hierarchy:
    """The hierarchy below a root in WordNet's data.noun: every synset below it with all that it is a kind, or an
    instance, of (pointers @ and @i) up to the root.

    A synset is called by its first word and by how many of that word's meanings come before it: horse.n.01. The order
    of meanings is that of the file index.noun beside. Raises ValueError if the files are none of WordNet's.
    """
    try:
        offsets = _meanings(dictionary.with_name("index.noun"))
        synsets = dict(map(_synset, _entries(dictionary)))
        names = {
            at: f"{word}.n.{offsets[word].index(at) + 1:02d}" for at, (word, _) in synsets.items() if word in offsets
        }
    except (ValueError, IndexError) as error:
        raise ValueError(f"{dictionary} is no file of WordNet's nouns: {error}") from error
    top = next((at for at, name in names.items() if name == root), None)
    if top is None:
        raise ValueError(f"root = {root!r}: there is no such synset in {dictionary}")
    below = defaultdict(list)
    for at, (_, parents) in synsets.items():
        for parent in parents:
            below[parent].append(at)
    inside, open_ends = {top}, [top]
    while open_ends:
        new = [at for at in below[open_ends.pop()] if at not in inside]
        inside.update(new)
        open_ends += new

    @cache
    def above(at: str) -> frozenset[str]:
        """The synset and all above it, as far as the root."""
        return frozenset({at}).union(*(above(parent) for parent in synsets[at][1] if parent in inside and at != top))

    kept = {at for at in inside if names[at] not in left_out}
    return Hierarchy.of((names[at], names[up]) for at in kept for up in above(at) & kept)


def _entries(path: Path) -> Iterator[str]:
    """The lines of a dictionary file after the licence, which is indented."""
    with path.open(encoding="utf-8") as file:
        yield from (line for line in file if not line.startswith("  "))


def _meanings(path: Path) -> dict[str, list[str]]:
    """The synsets of every noun, its most usual meaning first."""
    out = {}
    for line in _entries(path):
        fields = line.split()
        count = int(fields[2])
        out[fields[0]] = fields[-count:]
    return out


def _synset(line: str) -> tuple[str, tuple[str, list[str]]]:
    """A line of data.noun: the synset, its first word, and what it is a kind or an instance of."""
    fields = line.partition("|")[0].split()
    words = int(fields[3], 16)
    pointers = fields[5 + 2 * words :]
    parents = [at for kind, at in zip(pointers[::4], pointers[1::4], strict=True) if kind in ("@", "@i")]
    return fields[0], (fields[4].lower(), parents)


# Embeddings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PoincareEmbedding:
    """Points of the Poincaré ball for the words of a hierarchy, by Riemannian SGD.

    The loss of a pair (u, v) is -log(e^{-dist(u, v)} / (e^{-dist(u, v)} + sum_{v'} e^{-dist(u, v')})) over `negatives`
    words v' drawn uniformly, of which those that u is a kind of do not count. Gradients are summed over `batch` pairs
    at a time, whose steps are taken together. In the first epochs, the share `burn_in` of them, the step size is
    divided by ten. Points start uniformly within 0.001 of the centre, and none goes farther from it than the distance
    `radius` (12.2 is a norm of 1 - 1e-5).
    (Nickel, Kiela 2017, sections 3 and 3.1, with the exponential map for their retraction.)
    """

    dim: int = 2
    epochs: int = 300
    step_size: float = 0.1
    negatives: int = 20
    burn_in: float = 1 / 6
    batch: int = 64
    radius: float = 12.2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("dim", "epochs", "negatives", "batch", "step_size", "radius"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} = {getattr(self, name)} must be positive")

    def train(self, graph: Hierarchy) -> Array:
        """The points [n, dim]. The same for the same seed."""
        ball, rng = PoincareBall(self.dim), np.random.default_rng(self.seed)
        n, related = len(graph.words), graph.related()
        points = rng.uniform(-0.001, 0.001, (n, self.dim))
        np.fill_diagonal(related, True)  # nor is a word an example of what it is not
        limit = np.tanh(self.radius / 2)
        for epoch in range(self.epochs):
            step_size = self.step_size / 10 if epoch < self.burn_in * self.epochs else self.step_size
            order = rng.permutation(len(graph.pairs))
            for start in range(0, len(order), self.batch):
                pairs = graph.pairs[order[start : start + self.batch]]
                drawn = rng.integers(0, n, (len(pairs), self.negatives))
                gradient = _gradient(ball, points, pairs, drawn, related)
                points = ball.exp(points, -step_size * gradient)
                norms = np.sqrt(np.vecdot(points, points))[:, None]
                points *= np.minimum(1.0, limit / np.maximum(norms, 1e-300))
        return points

    def cached(self, graph: Hierarchy) -> Array:
        """`train`, or what it made before: the points are kept in the platform's cache folder."""
        key = hashlib.sha256(graph.to_tsv() + repr(self).encode()).hexdigest()[:16]
        path = download.cache_folder() / "wordnet" / f"embedding-{key}.npy"
        with contextlib.suppress(OSError, ValueError):
            points = read_arrays(path, ("points",))["points"]
            if points.shape == (len(graph.words), self.dim):
                return np.asarray(points, dtype=float)
        points = self.train(graph)
        with contextlib.suppress(OSError):  # a cache that cannot be written is none
            path.parent.mkdir(parents=True, exist_ok=True)
            buffer = io.BytesIO()
            np.save(buffer, points)
            write_atomically(path, buffer.getvalue())
        return points


def _gradient(
    ball: PoincareBall,
    points: Array,
    pairs: NDArray[np.int64],
    drawn: NDArray[np.int64],
    related: NDArray[np.bool_],
) -> Array:
    """The Riemannian gradient of the loss of some pairs [b, 2] by all points [n, d], for words [b, k] drawn."""
    u = pairs[:, 0]
    others = np.concatenate([pairs[:, 1:], drawn], axis=1)
    counts = np.ones(others.shape, dtype=bool)
    counts[:, 1:] = ~related[u[:, None], drawn]
    here, there = points[u][:, None], points[others]
    distance = ball.dist(here, there)
    likely = np.where(counts, np.exp(distance[:, :1] - distance), 0.0)
    slope = -likely / likely.sum(axis=1, keepdims=True)
    slope[:, 0] += 1
    # The gradient of dist(u, v) at u is -Log_u(v)/dist(u, v); of points that coincide there is none.
    slope = np.where(distance > 0, -slope / np.where(distance > 0, distance, 1), 0.0)[..., None]
    gradient = np.zeros_like(points)
    np.add.at(gradient, u, (slope * ball.log(here, there)).sum(axis=1))
    np.add.at(gradient, others, slope * ball.log(there, here))
    return gradient


class Reconstruction(NamedTuple):
    """How well distances tell what a word is a kind of: the mean rank of that among all words that it is no kind of,
    1 being best, and the mean average precision, likewise."""

    mean_rank: float
    mean_average_precision: float


def reconstruction(graph: Hierarchy, points: Array) -> Reconstruction:
    """The quality of an embedding on the Poincaré ball, as Nickel and Kiela (2017, section 4.1) measure it."""
    ball, related = PoincareBall(points.shape[1]), graph.related()
    ranks, precisions = [], []
    for u in np.flatnonzero(related.any(axis=1)):
        distance = ball.dist(points[u], points)
        distance[u] = np.inf
        near = np.sort(distance[related[u]])
        rank = 1 + np.searchsorted(np.sort(distance[~related[u]]), near)
        ranks.append(rank)
        found = np.arange(1, len(near) + 1)
        precisions.append(float(np.mean(found / (rank - 1 + found))))
    return Reconstruction(float(np.concatenate(ranks).mean()), float(np.mean(precisions)))


def to_hyperboloid(x: Array) -> Array:
    """Points [..., d] of the Poincaré ball as points [..., d + 1] of the hyperboloid."""
    square = np.vecdot(x, x)[..., None]
    return np.concatenate([1 + square, 2 * x], axis=-1) / (1 - square)


def to_ball(y: Array) -> Array:
    """Points [..., d + 1] of the hyperboloid as points [..., d] of the Poincaré ball."""
    return y[..., 1:] / (1 + y[..., :1])


# Features -----------------------------------------------------------------------------------------------------------


def eigenmap(graph: Hierarchy, dim: int = 3) -> Array:
    """Laplacian eigenmap of the words, [n, dim] (Belkin, Niyogi 2003): with the symmetric adjacency matrix A of the
    pairs and its degrees D, the unit eigenvectors of D^-1/2 A D^-1/2 for the largest eigenvalues, without that of the
    very largest, which is constant, each entry divided by the root of its degree.

    Signs are such that the entry with the largest absolute value is positive.
    """
    from scipy import sparse
    from scipy.sparse.linalg import eigsh

    n = len(graph.words)
    ones = np.ones(len(graph.pairs))
    above = sparse.coo_array((ones, tuple(graph.pairs.T)), shape=(n, n)).tocsr()
    adjacency = ((above + above.T) > 0).astype(float)
    root = np.sqrt(adjacency.sum(axis=0))
    scale = sparse.diags_array(1 / root)
    _, vectors = eigsh(scale @ adjacency @ scale, k=dim + 1, which="LA", v0=np.linspace(1, 2, n))
    vectors = vectors[:, -2::-1] / root[:, None]
    return vectors * np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(dim)])


# Records --------------------------------------------------------------------------------------------------------------


@cache
def mammals(folders: DataFolders) -> Hierarchy:
    """The closure that is at hand. Raises DataNotFound."""
    return read_closure(folders.find("wordnet", CLOSURE))


@cache
def mammals_features(folders: DataFolders) -> Array:
    """The eigenmap of the mammals to three dimensions."""
    return eigenmap(mammals(folders))


@final
@dataclass(frozen=True, kw_only=True)
class WordNet(Source):
    """Structured prediction of a mammal of WordNet from all others: records (weight, point of the hyperboloid).

    word: what is predicted; its own record is left out. groups: the other words are divided at random among so many
    groups of equal size, the natural keys; what does not divide is left out. Every group computes the weights from the
    features of its own words, Laplacian eigenmaps to R^3, by a Gaussian kernel of this width and with this ridge, and
    multiplies them by how many words it has. The points are a Poincaré embedding that is trained first, in so many
    epochs, and kept in the cache folder; none is farther than `radius` from the middle.

    The weights, and the features, are as public as the graph that they come from; points that were trained jointly
    from it are not independent of each other.
    """

    name = "wordnet"
    public = "wordnet"
    word: str = "primate.n.02"
    groups: int = 9
    width: float = 0.03
    ridge: float = 1e-5
    epochs: int = PoincareEmbedding.epochs
    radius: float = PoincareEmbedding.radius

    def load(self, folders: DataFolders, rng: np.random.Generator) -> DataSet:
        at_least("groups", self.groups, 1)
        graph = mammals(folders)
        query = graph.index(self.word)
        others = rng.permutation(np.delete(np.arange(len(graph.words)), query))
        size = len(others) // self.groups
        if size == 0:
            raise ValueError(f"groups = {self.groups}: there are {len(others)} words only")
        parts = others[: size * self.groups].reshape(self.groups, size)
        features, labels = mammals_features(folders), self.labels(folders)
        weights = [size * kernel_weights(features[part], features[query], self.width, self.ridge) for part in parts]
        records = np.concatenate([np.concatenate(weights)[:, None], labels[parts.ravel()]], axis=1)
        description = f"{len(records)} mammals of WordNet, weighed for {graph.words[query]}"
        return DataSet(records, description, keys=np.repeat(np.arange(self.groups), size).astype(str))

    def labels(self, folders: DataFolders) -> Array:
        """The points of all words, [n, 3]."""
        return to_hyperboloid(self.embedding.cached(mammals(folders)))

    @property
    def embedding(self) -> PoincareEmbedding:
        return PoincareEmbedding(epochs=self.epochs, radius=self.radius)
