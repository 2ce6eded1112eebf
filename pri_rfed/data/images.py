"""Covariance descriptors of images: every RGB image becomes an SPD matrix."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from pri_rfed.data.base import Array, DataSet, Source, at_least
from pri_rfed.data.download import DataFolders
from pri_rfed.files import read_arrays

_NUMBERS_AT_ONCE = 1 << 21
"""How many numbers of features are computed together: a bound on memory."""

_SMOOTH = np.array([1.0, 2.0, 1.0]) / 4, np.array([1.0, 4.0, 6.0, 4.0, 1.0]) / 16
_DIFFERENCE = np.array([1.0, 0.0, -1.0]), np.array([1.0, 0.0, -2.0, 0.0, 1.0]) / 2
"""The factors of the masks for first and second derivatives, so scaled that no derivative exceeds 1 in absolute value
where grey levels lie in [0, 1]."""


def features(images: Array, number: Literal[9, 11] = 11) -> Array:
    """The features of every pixel, [k, h, w, number], for images [k, h, w, 3] with levels in [0, 1]:

        x, y, R, G, B, |I_x|, |I_y|, |I_xx|, |I_yy|, and of 11 also |grad I| and the angle arctan(|I_x|/|I_y|).

    x and y are those of a pixel's centre, in units of the width and the height; the angle is in radians, 0 where there
    is no gradient. The intensity I is the luma 0.299 R + 0.587 G + 0.114 B; at the borders it goes on as it ends there.
    The derivatives are those of Sobel masks, 3 x 3 and 5 x 5: all features lie in [0, 1], but for |grad I| <= sqrt(2)
    and the angle <= pi/2. (dp-rsvrg-fast-sampling.txt, section C.1. The 3 x 3 masks printed there have 6 and 12 where
    the mask by Sobel has 1; read so, they are the derivatives that the text says they are.)
    """
    k, h, w, _ = images.shape
    grey = images @ np.array([0.299, 0.587, 0.114])
    across, down = _derivative(grey, 2, 0), _derivative(grey, 1, 0)
    columns = [
        np.broadcast_to((np.arange(w) + 0.5) / w, (k, h, w)),
        np.broadcast_to(((np.arange(h) + 0.5) / h)[:, None], (k, h, w)),
        *np.moveaxis(images, -1, 0),
        across,
        down,
        _derivative(grey, 2, 1),
        _derivative(grey, 1, 1),
    ]
    if number == 11:
        columns += [np.hypot(across, down), np.arctan2(across, down)]
    return np.stack(columns, axis=-1)


def _derivative(grey: Array, axis: int, order: int) -> Array:
    """The absolute value of the first (order 0) or second (1) derivative of images [k, h, w] along an axis, 1 or 2."""
    return np.abs(_filtered(_filtered(grey, _DIFFERENCE[order], axis), _SMOOTH[order], 3 - axis))


def _filtered(grey: Array, mask: Array, axis: int) -> Array:
    reach = len(mask) // 2
    padding = [(0, 0)] * grey.ndim
    padding[axis] = (reach, reach)
    padded = np.pad(grey, padding, mode="edge")
    return np.lib.stride_tricks.sliding_window_view(padded, len(mask), axis) @ mask


def covariance_descriptors(images: NDArray[np.uint8] | Array, number: Literal[9, 11], regulariser: float) -> Array:
    """The covariance of the features of an image's pixels plus `regulariser` times the identity, [k, number, number].

    images [k, h, w, 3]: bytes, or levels in [0, 1]. The divisor of the covariance is the number of pixels. Each
    descriptor depends on its own image and on public constants alone. (dp-rsvrg-fast-sampling.txt, section C.1)
    """
    out = np.empty((len(images), number, number))
    length = max(1, _NUMBERS_AT_ONCE // (images.shape[1] * images.shape[2] * number))
    for start in range(0, len(images), length):
        part = images[start : start + length]
        levels = part / 255.0 if part.dtype == np.uint8 else np.asarray(part, dtype=float)
        rows = features(levels, number).reshape(len(part), -1, number)
        rows -= rows.mean(axis=1, keepdims=True)
        covariance = np.swapaxes(rows, 1, 2) @ rows / rows.shape[1]
        out[start : start + length] = (covariance + np.swapaxes(covariance, 1, 2)) / 2
    return out + regulariser * np.eye(number)


@dataclass(frozen=True, kw_only=True)
class _Descriptors(Source):
    """Covariance descriptors [features, features] of RGB images, for the affine-invariant geometry of SPD matrices.

    features: 11, or 9 without length and angle of the gradient (see `features` in the code). regulariser: how often the
    identity is added, a public constant. records: so many images, drawn at random; none: all.
    """

    features: Literal[9, 11] = 11
    regulariser: float = 1e-6
    records: int | None = None

    def _data_set(
        self, images: NDArray[np.uint8] | Array, what: str, labels: NDArray[np.int64] | None, rng: np.random.Generator
    ) -> DataSet:
        if not self.regulariser > 0:
            raise ValueError(f"regulariser = {self.regulariser}: must be positive, or descriptors may be singular")
        if self.records is not None:
            at_least("records", self.records, 1)
            if self.records > len(images):
                raise ValueError(f"records = {self.records}: there are {len(images)} images only")
            chosen = rng.permutation(len(images))[: self.records]
            images, labels = images[chosen], None if labels is None else labels[chosen]
        descriptors = covariance_descriptors(images, self.features, self.regulariser)
        size = f"{self.features} x {self.features}"
        return DataSet(descriptors, f"covariance descriptors {size} of {len(images)} {what}", labels)


@final
@dataclass(frozen=True, kw_only=True)
class PathMNIST(_Descriptors):
    """Covariance descriptors of PathMNIST's images of colon tissue, 28 x 28 pixels: its training set of 89996 images,
    validation set of 10004, or test set of 7180.

    classes: only images with these labels (0 adipose tissue, 1 background, ... 8); none: all. See `_Descriptors` for
    the rest.
    """

    name = "pathmnist"
    public = "pathmnist"
    subset: Literal["train", "val", "test"] = "train"
    classes: tuple[int, ...] = ()

    def load(self, folders: DataFolders, rng: np.random.Generator) -> DataSet:
        images, labels = read_medmnist(folders.find("pathmnist", "pathmnist/pathmnist.npz"), self.subset)
        if self.classes:
            chosen = np.isin(labels, self.classes)
            if not chosen.any():
                raise ValueError(f"classes = {list(self.classes)}: no image has one of these labels")
            images, labels = images[chosen], labels[chosen]
        return self._data_set(images, "PathMNIST images", labels, rng)


def read_medmnist(path: Path, subset: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """RGB images [n, h, w, 3] and labels [n] of one subset in a file of MedMNIST (npz). Raises ValueError if it holds
    none."""
    try:
        images, labels = read_arrays(path, (f"{subset}_images", f"{subset}_labels")).values()
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is no file of MedMNIST: {error}") from error
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise ValueError(f"{path} holds no RGB images, but an array of shape {images.shape} of {images.dtype}")
    if labels.size != len(images):
        raise ValueError(f"{path} holds {len(images)} images but {labels.size} labels")
    return images, labels.reshape(-1).astype(np.int64)


@final
@dataclass(frozen=True, kw_only=True)
class Histology(_Descriptors):
    """Covariance descriptors of patches of one real image of colon tissue, 512 x 512 pixels: what stands in for
    PathMNIST where that is not at hand.

    patch: the length of a square patch's side in pixels. stride: how far the next patch is off; with the length of a
    side itself there are 324 patches of 28 x 28, with less they overlap, so that there are more of them, but one pixel
    of the image is then part of several records. See `_Descriptors` for the rest.
    """

    name = "ihc"
    public = "ihc"
    patch: int = 28
    stride: int = 28

    def load(self, folders: DataFolders, rng: np.random.Generator) -> DataSet:
        at_least("patch", self.patch, 5)
        at_least("stride", self.stride, 1)
        image = read_png(folders.find("ihc", "ihc/ihc.png"))
        if self.patch > min(image.shape[:2]):
            raise ValueError(f"patch = {self.patch}: the image has {image.shape[0]} x {image.shape[1]} pixels only")
        windows = np.lib.stride_tricks.sliding_window_view(image, (self.patch, self.patch), (0, 1))
        patches = np.moveaxis(windows[:: self.stride, :: self.stride], 2, -1).reshape(-1, self.patch, self.patch, 3)
        size = f"{self.patch} x {self.patch}"
        kind = "patches" if self.stride >= self.patch else f"overlapping patches, {self.stride} pixels apart,"
        return self._data_set(patches, f"{kind} of {size} of an image of colon tissue", None, rng)


def read_png(path: Path) -> Array:
    """The levels in [0, 1] of an RGB image, [h, w, 3]. Raises ValueError if the file holds none."""
    from matplotlib.image import imread

    try:
        image = np.asarray(imread(path, format="png"), dtype=float)
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{path} is no PNG file: {error}") from error
    if image.ndim != 3 or image.shape[2] not in (3, 4):
        raise ValueError(f"{path} holds no RGB image, but an array of shape {image.shape}")
    return image[..., :3]


def tissue(folders: DataFolders, **options: object) -> PathMNIST | Histology:
    """PathMNIST where it is at hand, else what stands in for it, with these options."""
    return (PathMNIST if folders.has("pathmnist") else Histology)(**options)  # type: ignore[arg-type]
