"""Named data sets as records of a problem.

Whatever scales a record here is a public constant or the record itself, never a statistic of the data set: otherwise
one record would change all others, and the sensitivities that the privacy rests on would not hold.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import itertools
import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from pri_rfed.data.base import Array, DataSet, Source, at_least
from pri_rfed.data.download import PUBLIC_DATA, DataFolders, open_binary
from pri_rfed.data.images import Histology, PathMNIST
from pri_rfed.data.ratings import MovieLens, SyntheticRatings
from pri_rfed.data.wordnet import WordNet
from pri_rfed.files import read_arrays
from pri_rfed.manifolds.naming import make_manifold, origin


def unit_rows(x: Array) -> Array:
    """Each row divided by its own norm; rows of zeros stay, [n, d]."""
    norms = np.sqrt(np.vecdot(x, x))[:, None]
    return x / np.where(norms > 0, norms, 1.0)


def into_unit_ball(x: Array) -> Array:
    """Each row longer than 1 divided by its own norm, [n, d]."""
    return x / np.maximum(1.0, np.sqrt(np.vecdot(x, x)))[:, None]


# Images -----------------------------------------------------------------------------------------------------------


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in an idx file of unsigned bytes, compressed or not. Raises ValueError if it is none."""
    try:
        with open_binary(path) as file:
            zeros, kind, axes = struct.unpack(">HBB", file.read(4))
            shape = struct.unpack(f">{axes}I", file.read(4 * axes))
            data = file.read()
    except (struct.error, gzip.BadGzipFile, EOFError) as error:
        raise ValueError(f"{path} is no idx file: {error}") from error
    if zeros != 0 or kind != 8:
        raise ValueError(f"{path} is no idx file of unsigned bytes")
    if len(data) != np.prod(shape, dtype=np.int64):
        raise ValueError(f"{path} holds {len(data)} bytes where its header says {'x'.join(map(str, shape))}")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


@final
@dataclass(frozen=True, kw_only=True)
class Digits(Source):
    """The 1797 handwritten digits that come with scikit-learn, 8 x 8 pixels of 17 grey levels: vectors [64].

    center: a public constant subtracted from every pixel, grey levels being scaled to [0, 1]. Then each record is
    scaled to norm 1.
    """

    name = "digits"
    center: float = 0.3

    def load(self, folders: DataFolders, rng: np.random.Generator) -> DataSet:
        # The file that scikit-learn's load_digits reads: importing scikit-learn takes longer than the quickstart.
        found = importlib.util.find_spec("sklearn")
        assert found is not None and found.origin is not None, "a dependency"
        table = np.loadtxt(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
        images, labels = table[:, :-1], table[:, -1].astype(np.int64)
        records = unit_rows(images / 16 - self.center)
        return DataSet(records, f"{len(records)} handwritten digits of 8 x 8 pixels, norm 1", labels=labels)


@final
@dataclass(frozen=True, kw_only=True)
class MNIST(Source):
    """MNIST's 60000 training images, or its 10000 test images, of 28 x 28 pixels: vectors [784].

    center: a public constant subtracted from every pixel, grey levels being scaled to [0, 1]. Then each record is
    scaled to norm 1. digits: only these; none: all.
    """

    name = "mnist"
    public = "mnist"
    subset: Literal["train", "test"] = "train"
    center: float = 0.1307
    digits: tuple[int, ...] = ()

    def load(self, folders: DataFolders, rng: np.random.Generator) -> DataSet:
        prefix = {"train": "train", "test": "t10k"}[self.subset]
        images = read_idx(folders.find("mnist", f"mnist/{prefix}-images-idx3-ubyte"))
        labels = read_idx(folders.find("mnist", f"mnist/{prefix}-labels-idx1-ubyte"))
        if len(images) != len(labels):
            raise ValueError(f"mnist: {len(images)} images but {len(labels)} labels")
        if self.digits:
            chosen = np.isin(labels, self.digits)
            if not chosen.any():
                raise ValueError(f"digits = {list(self.digits)}: no image has one of these labels")
            images, labels = images[chosen], labels[chosen]

        def records(images: NDArray[np.uint8]) -> Array:
            return unit_rows(images.reshape(len(images), -1) / 255.0 - self.center)

        description = f"{len(images)} MNIST images of 28 x 28 pixels, norm 1"
        return DataSet(images, description, labels=labels, make=records)


# Tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Libsvm(Source):
    """A table of the LIBSVM collection, as a MATLAB file or in the collection's own text form (lines `label
    index:value ...`); each record is scaled to norm 1."""

    variable: ClassVar[str]

    def load(self, folders: DataFolders, rng: np.random.Generator) -> DataSet:
        (file,) = PUBLIC_DATA[self.name].files
        path = folders.find(self.name, file.path, file.others)
        table, labels = self._read_mat(path) if path.suffix == ".mat" else read_libsvm(path)
        records = unit_rows(table)
        description = f"{self.name}: {len(records)} records of {records.shape[1]} features, norm 1"
        return DataSet(records, description, labels=labels)

    def _read_mat(self, path: Path) -> tuple[Array, None]:
        from scipy.io import loadmat

        table = loadmat(path).get(self.variable)
        if table is None:
            raise ValueError(f"{path} holds no variable {self.variable}")
        return np.asarray(table, dtype=float), None


def read_libsvm(path: Path) -> tuple[Array, Array]:
    """The records [n, features] and labels [n] of a text file in LIBSVM's form, compressed or not; indices begin at 1,
    and what is left out is 0. Raises ValueError if it is none."""
    from sklearn.datasets import load_svmlight_file

    try:
        with open_binary(path) as file:
            records, labels = load_svmlight_file(file, zero_based=False)
    except (ValueError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is no file of lines `label index:value ...`: {error}") from error
    if not records.nnz:
        raise ValueError(f"{path} is no file of lines `label index:value ...`: it holds no value")
    return records.toarray(), labels


@final
class Satimage(_Libsvm):
    """satimage; the published copy, which is downloaded, has 6430 vectors [36], each scaled to norm 1."""

    name = "satimage"
    public = "satimage"
    variable = "satimage"


@final
class Ijcnn1(_Libsvm):
    """ijcnn1; the published copy, which is downloaded, has 49990 vectors [14], each scaled to norm 1."""

    name = "ijcnn1"
    public = "ijcnn1"
    variable = "ijcnn_data"


@final
@dataclass(frozen=True, kw_only=True)
class Table(Source):
    """The user's own file.

    .npz: `records` [n, *record_shape], and perhaps `labels` [n] and `keys` [n]; .npy: the records; .csv: a header and
    one record in each line, all columns numbers but `label` and `key`, which are the names of such columns. A key says
    who holds a record, to the partition "natural": spaces around it do not count, and none may be missing.
    scale: what is done to records that are vectors: nothing, "unit" (each to norm 1), "ball" (each longer than 1 to 1).
    Values are divided by the public constant `unit` first.
    """

    name = "file"
    path: str
    label: str | None = None
    key: str | None = None
    unit: float = 1.0
    scale: Literal["none", "unit", "ball"] = "none"

    def load(self, folders: DataFolders, rng: np.random.Generator) -> DataSet:
        path = Path(self.path).expanduser()
        if not path.is_file():
            raise ValueError(f"path = {self.path!r}: there is no such file")
        readers = {".npz": self._read_arrays, ".npy": self._read_arrays, ".csv": self._read_csv}
        if path.suffix not in readers:
            raise ValueError(f"path = {self.path!r}: must end in {', '.join(readers)}")
        records, labels, keys = readers[path.suffix](path)
        if records.ndim < 2 or len(records) == 0:
            raise ValueError(f"path = {self.path!r}: records [n, ...] are needed, not shape {records.shape}")
        for what, values in (("labels", labels), ("keys", keys)):
            if values is not None and values.shape != (len(records),):
                raise ValueError(f"path = {self.path!r}: {what} have shape {values.shape}, records {records.shape}")
        if not (np.isfinite(self.unit) and self.unit > 0):
            raise ValueError(f"unit = {self.unit}: must be a positive finite number")
        bad = ~np.isfinite(records).all(axis=tuple(range(1, records.ndim)))
        if bad.any():
            raise ValueError(f"path = {self.path!r}: record {int(bad.argmax())} holds NaN or infinite numbers")
        records = records / self.unit
        if self.scale != "none":
            if records.ndim != 2:
                raise ValueError(f"scale = {self.scale!r}: only vectors can be scaled, not shape {records.shape[1:]}")
            records = unit_rows(records) if self.scale == "unit" else into_unit_ball(records)
        shape = " x ".join(map(str, records.shape[1:]))
        return DataSet(records, f"{path.name}: {len(records)} records of shape {shape}", labels, keys)

    def _read_arrays(self, path: Path) -> tuple[Array, NDArray[Any] | None, NDArray[Any] | None]:
        try:
            held = read_arrays(path, ("records",), optional=("labels", "keys"))
            return np.asarray(held["records"], dtype=float), held.get("labels"), held.get("keys")
        except (ValueError, TypeError) as error:
            raise ValueError(f"path = {self.path!r}: {error}") from error

    def _read_csv(self, path: Path) -> tuple[Array, NDArray[Any] | None, NDArray[Any] | None]:
        lines: list[tuple[int, list[str]]] = []
        try:
            # Spreadsheets begin a file with a byte order mark, which is no part of a column's name.
            with path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.reader(file, strict=True)
                lines += ((reader.line_num, [entry.strip() for entry in row]) for row in reader if row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"path = {self.path!r}: it is no comma-separated table in UTF-8: {error}") from error
        if len(lines) < 2:
            raise ValueError(f"path = {self.path!r}: a header and at least one record are needed")
        (_, header), rows = lines[0], lines[1:]
        if len(header) == 1 and (other := re.search(r"[;\t]", header[0])):
            raise ValueError(f"path = {self.path!r}: columns must be separated by commas, not by {other[0]!r}")
        if any("." in name for name in header) and all(math.isfinite(_number(name)) for name in header):
            raise ValueError(f"path = {self.path!r}: line 1 holds numbers, where the names of columns are needed")
        for option, column in (("label", self.label), ("key", self.key)):
            if column is not None and column not in header:
                raise ValueError(f"{option} = {column!r}: no such column; there are {', '.join(header)}")
        for line, row in rows:
            if len(row) != len(header):
                comma = "; is there a decimal comma?" if len(row) > len(header) else ""
                raise ValueError(
                    f"path = {self.path!r}: line {line} has {len(row)} entries and the header {len(header)}{comma}"
                )
            if self.key is not None and not row[header.index(self.key)]:
                raise ValueError(f"path = {self.path!r}: line {line} has no {self.key!r}, which says who holds it")
        numbers = [i for i, column in enumerate(header) if column not in (self.label, self.key)]
        records = np.empty((len(rows), len(numbers)))
        for j, (line, row) in enumerate(rows):
            values = [_number(row[i]) for i in numbers]
            if not all(map(math.isfinite, values)):
                wrong = next(i for i, value in zip(numbers, values, strict=True) if not math.isfinite(value))
                raise ValueError(
                    f"path = {self.path!r}: line {line}: {header[wrong]!r} is {row[wrong]!r}, which is no finite "
                    "number; only the columns that `key` and `label` name may hold anything else"
                )
            records[j] = values
        labels, keys = (
            None if column is None else np.array([row[header.index(column)] for _, row in rows])
            for column in (self.label, self.key)
        )
        return records, labels, keys


def _number(text: str) -> float:
    """The number that a text is, or NaN."""
    try:
        return float(text)
    except ValueError:
        return math.nan


# Covariances --------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, kw_only=True)
class EMG(Source):
    """Covariances of muscle potentials: SPD matrices [8, 8], one for each window of a gesture's recording.

    A recording is a run of equal session and gesture; it is cut into windows of `window` samples, and what is left over
    is dropped. The covariance of a window, in squared steps of the 8-bit converter, gets `floor` times the identity
    added (1: no variance below one step of the converter) and is divided by `unit`; both are public constants. Natural
    key: session and gesture.
    """

    name = "emg"
    public = "emg"
    window: int = 200
    floor: float = 1.0
    unit: float = 4.0

    def load(self, folders: DataFolders, rng: np.random.Generator) -> DataSet:
        at_least("window", self.window, 9)
        if not self.floor >= 0:
            raise ValueError(f"floor = {self.floor}: must not be negative")
        if not self.unit > 0:
            raise ValueError(f"unit = {self.unit}: must be positive")
        signal, gestures, sessions = self._read(folders.find("emg", "emg/emg.csv"))
        change = (gestures[1:] != gestures[:-1]) | (sessions[1:] != sessions[:-1])
        bounds = [0, *(np.flatnonzero(change) + 1).tolist(), len(signal)]
        first = np.concatenate(
            [np.arange(start, end - self.window + 1, self.window) for start, end in itertools.pairwise(bounds)]
        )
        if len(first) == 0:
            raise ValueError(f"window = {self.window}: no recording is as long as that")
        windows = signal[first[:, None] + np.arange(self.window)]
        windows -= windows.mean(axis=1, keepdims=True)
        covariances = windows.swapaxes(1, 2) @ windows / (self.window - 1)
        records = (covariances + self.floor * np.eye(signal.shape[1])) / self.unit
        keys = np.char.add(np.char.add(sessions[first], "/"), gestures[first])
        description = f"{len(records)} covariances of {self.window} samples of 8 EMG channels"
        return DataSet(records, description, labels=gestures[first], keys=keys)

    def _read(self, path: Path) -> tuple[Array, NDArray[np.str_], NDArray[np.str_]]:
        """Samples [rows, 8], their gestures and sessions."""
        with open_binary(path) as file:
            table = io.BytesIO(file.read())
        header = table.readline().decode("ascii", "replace").strip()
        if header != "time,c0,c1,c2,c3,c4,c5,c6,c7,label,exp":
            raise ValueError(f"{path} is not the EMG table: its first line is {header[:60]!r}")
        start = table.tell()
        signal = np.loadtxt(table, delimiter=",", usecols=range(1, 9), ndmin=2)
        table.seek(start)
        names = np.loadtxt(table, delimiter=",", usecols=(9, 10), dtype="U16", ndmin=2)
        return signal, names[:, 0], names[:, 1]


# Synthetic ----------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True, kw_only=True)
class SyntheticPCA(Source):
    """Vectors with a given eigengap, as in prirfed.txt, section 6.1: the rows of Z = U diag(s) V.

    s = (1, 1 - gap, 1 - 1.1 gap, ..., 1 - 1.4 gap, |g_1|/dimension, |g_2|/dimension, ...) with g_i i.i.d. N(0, 1); U
    [records, dimension] and V [dimension, dimension] have uniformly random orthonormal columns.

    scale: "ball" multiplies by the public constant sqrt(records)/5 and shortens the few rows that are then longer than
    1, which keeps the spectrum; "unit" scales each row to norm 1, which makes the leading eigenvalues four times as
    large beside the noise of a private training, and their gap about a third smaller.
    """

    name = "synthetic-pca"
    records: int = 10000
    dimension: int = 50
    gap: float = 1e-3
    scale: Literal["ball", "unit"] = "ball"

    def load(self, folders: DataFolders, rng: np.random.Generator) -> DataSet:
        at_least("dimension", self.dimension, 6)
        at_least("records", self.records, self.dimension)
        if not 0 < self.gap < 0.7:
            raise ValueError(f"gap = {self.gap}: must lie between 0 and 0.7")
        leading = 1 - self.gap * np.array([0, 1, 1.1, 1.2, 1.3, 1.4])
        rest = np.abs(rng.standard_normal(self.dimension - len(leading))) / self.dimension
        left = np.linalg.qr(rng.standard_normal((self.records, self.dimension)))[0]
        right = np.linalg.qr(rng.standard_normal((self.dimension, self.dimension)))[0]
        rows = left * np.concatenate([leading, rest]) @ right
        records = unit_rows(rows) if self.scale == "unit" else into_unit_ball(rows * np.sqrt(self.records) / 5)
        description = f"{self.records} synthetic vectors of dimension {self.dimension}, eigengap {self.gap:g}"
        return DataSet(records, description)


@final
@dataclass(frozen=True, kw_only=True)
class SyntheticSPD(Source):
    """SPD matrices [size, size] from Wishart(I/size, freedom), given that they lie within `radius` of the identity.

    The distance is the affine-invariant one. As in dp-riemannian-optimization.txt, section 6.1, and
    dp-over-manifolds.txt. freedom: degrees of freedom; none: size.
    """

    name = "synthetic-spd"
    records: int = 10000
    size: int = 2
    freedom: int | None = None
    radius: float = 1.0

    def load(self, folders: DataFolders, rng: np.random.Generator) -> DataSet:
        at_least("records", self.records, 1)
        at_least("size", self.size, 1)
        freedom = self.size if self.freedom is None else self.freedom
        at_least("freedom", freedom, self.size)
        if not self.radius > 0:
            raise ValueError(f"radius = {self.radius}: must be positive")
        accepted: list[Array] = []
        drawn = found = 0
        while found < self.records:
            factor = rng.standard_normal((max(self.records, 1000), self.size, freedom)) / np.sqrt(self.size)
            matrices = factor @ factor.swapaxes(-1, -2)
            with np.errstate(divide="ignore", invalid="ignore"):
                far = np.linalg.norm(np.log(np.linalg.eigvalsh(matrices)), axis=1)
            accepted.append(matrices[far <= self.radius])
            drawn += len(matrices)
            found += len(accepted[-1])
            if drawn >= 10**6 and found < 1e-4 * drawn:
                raise ValueError(
                    f"radius = {self.radius}: fewer than one in 10^4 Wishart matrices lie within it; "
                    f"a larger radius or more degrees of freedom (now {freedom}) are needed"
                )
        records = np.concatenate(accepted)[: self.records]
        shape = f"{self.size} x {self.size}"
        return DataSet(records, f"{self.records} Wishart matrices {shape} within {self.radius:g} of the identity")


@final
@dataclass(frozen=True, kw_only=True)
class SyntheticBall(Source):
    """Points of a manifold in a ball about its middle (0, the first unit vector, or the identity).

    shape: of one point. Directions are uniform on the unit tangent sphere and distances uniform on
    [0, radius - offset], about a random point at the distance `offset` from the middle. On the sphere with offset 0 and
    radius pi/8 these are the records of the sphere experiment of dp-over-manifolds.txt.
    """

    name = "synthetic-ball"
    manifold: str = "sphere"
    shape: tuple[int, ...] = (3,)
    records: int = 10000
    radius: float = np.pi / 8
    offset: float = 0.0

    def load(self, folders: DataFolders, rng: np.random.Generator) -> DataSet:
        at_least("records", self.records, 1)
        manifold = make_manifold(self.manifold, self.shape)
        middle = origin(manifold)
        reach = float(manifold.injectivity_radius(middle))
        if not 0 < self.radius < min(reach, np.inf):
            raise ValueError(f"radius = {self.radius}: must be positive and below the injectivity radius {reach:.6g}")
        if not 0 <= self.offset < self.radius:
            raise ValueError(f"offset = {self.offset}: must not be negative, and below the radius {self.radius}")
        away = self.offset * _directions(manifold.dim, 1, rng)
        center = manifold.exp(middle, manifold.from_coordinates(middle, away))
        lengths = (self.radius - self.offset) * rng.random((self.records, 1))
        coordinates = lengths * _directions(manifold.dim, self.records, rng)
        records = manifold.exp(center, manifold.from_coordinates(center, coordinates))
        return DataSet(records, f"{self.records} points of {manifold} within {self.radius:.4g} of its middle")


def _directions(dim: int, number: int, rng: np.random.Generator) -> Array:
    """Uniformly random unit vectors [number, dim]."""
    return unit_rows(rng.standard_normal((number, dim)))


SOURCES: dict[str, type[Source]] = {
    cls.name: cls
    for cls in (
        Digits,
        MNIST,
        PathMNIST,
        Histology,
        Satimage,
        Ijcnn1,
        EMG,
        SyntheticPCA,
        SyntheticSPD,
        SyntheticBall,
        MovieLens,
        SyntheticRatings,
        WordNet,
        Table,
    )
}
