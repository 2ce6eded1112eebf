"""Covariance descriptors of images: features, bounds, and the readers of what they come from."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, at_hand
from matplotlib.image import imsave
from scipy import ndimage

from pri_rfed.data.download import PUBLIC_DATA, DataFolders
from pri_rfed.data.images import Histology, PathMNIST, covariance_descriptors, features, read_medmnist, tissue
from pri_rfed.data.sources import SOURCES
from pri_rfed.experiment.config import load, override, read_toml
from pri_rfed.manifolds import SPDAffineInvariant
from pri_rfed.problems import FrechetMean
from pri_rfed.simulation import train_agents


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def write_pathmnist(folder: Path, images: np.ndarray, labels: np.ndarray, subset: str = "train") -> Path:
    (folder / "pathmnist").mkdir(exist_ok=True)
    path = folder / "pathmnist" / "pathmnist.npz"
    arrays: dict[str, Any] = {f"{subset}_images": images, f"{subset}_labels": labels}
    np.savez(path, **arrays)
    return path


def write_ihc(folder: Path, size: int = 64) -> np.ndarray:
    (folder / "ihc").mkdir()
    image = rng().integers(0, 256, (size, size, 3), dtype=np.uint8)
    imsave(folder / "ihc" / "ihc.png", image)
    return image


def test_features_are_those_of_the_publication() -> None:
    """Against convolutions written out with the printed masks."""
    image = rng().random((9, 7, 3))
    found = features(image[None], 11)[0]
    grey = image @ [0.299, 0.587, 0.114]
    sobel = np.array([[1, 0, -1], [2, 0, -2], [1, 0, -1]]) / 4
    second = np.outer([1, 4, 6, 4, 1], [1, 0, -2, 0, 1]) / 32
    gx, gy, gxx, gyy = (
        np.abs(ndimage.convolve(grey, mask, mode="nearest")) for mask in (sobel, sobel.T, second, second.T)
    )
    y, x = np.mgrid[:9, :7]
    expected = [(x + 0.5) / 7, (y + 0.5) / 9, *np.moveaxis(image, -1, 0), gx, gy, gxx, gyy]
    expected += [np.sqrt(gx**2 + gy**2), np.arctan(gx / gy)]
    np.testing.assert_allclose(found, np.stack(expected, axis=-1), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(features(image[None], 9)[0], found[..., :9])


def test_features_lie_within_public_bounds() -> None:
    """So a descriptor's eigenvalues have public bounds, too. Black and white edges in all directions reach them."""
    y, x = np.mgrid[:28, :28] - 13.7
    edges = [(np.cos(t) * x + np.sin(t) * y > 0).astype(float) for t in np.linspace(0, np.pi, 13)]
    lines = [(np.abs(np.cos(t) * x + np.sin(t) * y) < 1).astype(float) for t in np.linspace(0, np.pi, 13)]
    noise = rng().integers(0, 2, (20, 28, 28)).astype(float)
    images = np.repeat(np.stack([*edges, *lines, *noise])[..., None], 3, axis=-1)
    found = features(images, 11)
    assert found.min() >= 0
    largest = found.max(axis=(0, 1, 2))
    bounds = np.array([1.0] * 9 + [np.sqrt(2), np.pi / 2])
    assert (largest <= bounds * (1 + 1e-12)).all() and (largest >= 0.6 * bounds).all(), largest
    flat = covariance_descriptors(np.full((1, 28, 28, 3), 0.4), 11, 1e-6)[0]
    assert np.linalg.eigvalsh(flat)[:9] == pytest.approx(1e-6, rel=1e-6)  # nothing but the place varies


@pytest.mark.parametrize("number", [9, 11])
def test_descriptors_are_covariances_of_one_image_each(number: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    images = rng().integers(0, 256, (7, 12, 10, 3), dtype=np.uint8)
    found = covariance_descriptors(images, number, 1e-6)
    for image, descriptor in zip(images, found, strict=True):
        table = features(image[None] / 255, number).reshape(-1, number)
        np.testing.assert_allclose(descriptor, np.cov(table.T, bias=True) + 1e-6 * np.eye(number), atol=1e-13)
    assert SPDAffineInvariant(number).check_point(found)
    np.testing.assert_allclose(covariance_descriptors(images / 255, number, 1e-6), found, atol=1e-14)
    monkeypatch.setattr("pri_rfed.data.images._NUMBERS_AT_ONCE", 1)
    np.testing.assert_allclose(covariance_descriptors(images, number, 1e-6), found, atol=1e-14)
    # Another image changes nothing in the others.
    other = np.concatenate([images[:3], 255 - images[3:4], images[4:]])
    changed = np.abs(covariance_descriptors(other, number, 1e-6) - found).max(axis=(1, 2)) > 0
    assert changed.tolist() == [i == 3 for i in range(7)]


def test_pathmnist_drops_in_by_name(tmp_path: Path, folders: DataFolders) -> None:
    images = rng().integers(0, 256, (30, 28, 28, 3), dtype=np.uint8)
    labels = (np.arange(30) % 3).astype(np.uint8)[:, None]
    assert isinstance(tissue(folders, features=9), Histology)
    write_pathmnist(tmp_path, images, labels)
    source = tissue(folders, features=9)
    assert isinstance(source, PathMNIST)
    data = source.load(folders, rng())
    np.testing.assert_array_equal(data.records, covariance_descriptors(images, 9, 1e-6))
    assert data.labels is not None and data.labels.tolist() == [i % 3 for i in range(30)]
    some = PathMNIST(classes=(1, 2), records=12).load(folders, rng())
    assert some.records.shape == (12, 11, 11) and some.labels is not None and set(some.labels.tolist()) == {1, 2}
    with pytest.raises(ValueError, match=r"classes = \[7\]"):
        PathMNIST(classes=(7,)).load(folders, rng())
    with pytest.raises(ValueError, match="records = 31: there are 30 images"):
        PathMNIST(records=31).load(folders, rng())
    with pytest.raises(ValueError, match=r"no file of MedMNIST: .*test_images"):
        PathMNIST(subset="test").load(folders, rng())
    with pytest.raises(ValueError, match="regulariser = 0"):
        PathMNIST(regulariser=0.0).load(folders, rng())


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((3, 28, 28), np.uint8), np.zeros(3), "no RGB images"),
        (np.zeros((3, 28, 28, 3)), np.zeros(3), "no RGB images"),
        (np.zeros((3, 28, 28, 3), np.uint8), np.zeros(2), "3 images but 2 labels"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, images: np.ndarray, labels: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_medmnist(write_pathmnist(tmp_path, images, labels), "train")
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(ValueError, match="no file of MedMNIST"):
        read_medmnist(tmp_path / "text.npz", "train")


def test_the_stand_in_is_cut_into_patches(tmp_path: Path, folders: DataFolders) -> None:
    image = write_ihc(tmp_path)
    data = Histology(features=9).load(folders, rng())
    patches = np.stack([image[i : i + 28, j : j + 28] for i in (0, 28) for j in (0, 28)])
    np.testing.assert_allclose(data.records, covariance_descriptors(patches, 9, 1e-6), atol=1e-7)
    overlapping = Histology(patch=20, stride=4).load(folders, rng())
    assert len(overlapping.records) == 12 * 12 and "overlapping" in overlapping.description
    one = covariance_descriptors(image[None, 8:28, 4:24], 11, 1e-6)
    np.testing.assert_allclose(overlapping.records[2 * 12 + 1], one[0], atol=1e-7)
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"patch": 65}, "64 x 64 pixels only"), ({"patch": 3}, "patch = 3"), ({"stride": 0}, "stride = 0"),
    ]  # fmt: skip
    for options, message in mistakes:
        with pytest.raises(ValueError, match=message):
            Histology(**options).load(folders, rng())


def test_what_is_no_picture_is_refused(tmp_path: Path, folders: DataFolders) -> None:
    (tmp_path / "ihc").mkdir()
    (tmp_path / "ihc" / "ihc.png").write_text("nothing")
    with pytest.raises(ValueError, match="no PNG file"):
        Histology().load(folders, rng())


def test_registered() -> None:
    assert SOURCES["pathmnist"] is PathMNIST and SOURCES["ihc"] is Histology


@pytest.mark.parametrize("folder", at_hand("ihc/ihc.png"))
def test_the_real_stand_in(folder: Path) -> None:
    data = Histology().load(DataFolders(folder), rng())
    assert data.records.shape == (324, 11, 11)
    assert SPDAffineInvariant(11).check_point(data.records)
    assert hashlib.sha256((folder / "ihc" / "ihc.png").read_bytes()).hexdigest() == PUBLIC_DATA["ihc"].files[0].sha256


@pytest.mark.parametrize("folder", at_hand("ihc/ihc.png"))
def test_the_shipped_configuration_runs(folder: Path) -> None:
    settings = read_toml(ROOT / "configs" / "image_descriptors.toml")
    experiment = load(override(settings, ["run.name=patches", "run.rounds=1", "run.sampled=2"]), DataFolders(folder))
    assert experiment.agents.counts.tolist() == [150] * 12
    problem = experiment.problem
    assert isinstance(problem, FrechetMean) and problem.center is not None
    uploads = train_agents(problem, experiment.agents, experiment.trainer, problem.center, np.arange(2), 0, 0)
    assert problem.manifold.check_point(uploads)
