"""Public data sets: where their files come from, with checksums, and where they are looked for.

A file is looked for in the folder that was given (`--data-dir`), then in the one that the environment variable
PRIRFED_DATA names, then in the cache that `pri-rfed data get` fills. Nothing is downloaded unless asked for.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pri_rfed.files import write_atomically

ENVIRONMENT = "PRIRFED_DATA"


@dataclass(frozen=True)
class PublicFile:
    """One file: `path` inside the data folder, its addresses in the order they are tried, its SHA-256.

    md5: stands in for the SHA-256 ("" then) where its publisher tells no other. It finds errors of transmission; made
    by somebody with intent, a file can have any MD5. derive: makes the file of what is installed on this machine, for
    one without an address; raises DataNotFound, saying what to install. others: paths under which the same data are
    taken in other forms, if somebody puts them there.
    """

    path: str
    urls: tuple[str, ...]
    sha256: str = ""
    md5: str = ""
    derive: Callable[[], bytes] | None = None
    others: tuple[str, ...] = ()

    @property
    def known_hash(self) -> str:
        """The checksum as pooch writes it."""
        return f"sha256:{self.sha256}" if self.sha256 else f"md5:{self.md5}"

    def is_content(self, path: Path) -> bool:
        """Whether that file has the known checksum."""
        with path.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256" if self.sha256 else "md5").hexdigest()
        return digest == (self.sha256 or self.md5)


@dataclass(frozen=True)
class PublicDataSet:
    """What `pri-rfed data get NAME` fetches."""

    description: str
    licence: str
    files: tuple[PublicFile, ...]


def _mnist(name: str, sha256: str) -> PublicFile:
    mirrors = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
    return PublicFile(f"mnist/{name}.gz", tuple(f"{mirror}{name}.gz" for mirror in mirrors), sha256)


def _mammals() -> bytes:
    from pri_rfed.data.wordnet import DICTIONARY, closure_of

    if not DICTIONARY.is_file():
        raise DataNotFound(
            f"{DICTIONARY} is not there; it comes with WordNet 3.0 (on Debian and Ubuntu: apt install wordnet-base)"
        )
    return closure_of(DICTIONARY).to_tsv()


_DP_RIEMOPT = "https://raw.githubusercontent.com/andyjm3/DP-RiemOpt/main/data"

PUBLIC_DATA: dict[str, PublicDataSet] = {
    "mnist": PublicDataSet(
        "MNIST, 70000 handwritten digits of 28 x 28 pixels",
        "CC BY-SA 3.0",
        (
            _mnist("train-images-idx3-ubyte", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            _mnist("train-labels-idx1-ubyte", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            _mnist("t10k-images-idx3-ubyte", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            _mnist("t10k-labels-idx1-ubyte", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ),
    ),
    "emg": PublicDataSet(
        "EMG of 8 channels, 4 sessions x 5 gestures, from geomstats",
        "MIT",
        (
            PublicFile(
                "emg/emg.csv",
                ("https://raw.githubusercontent.com/geomstats/geomstats/2.8.0/geomstats/datasets/data/emg/emg.csv",),
                "7f80636be3dc37770da73ca8456ddaad9a0b752ec34b51903f33cf05bdc5ca9a",
            ),
        ),
    ),
    "satimage": PublicDataSet(
        "satimage of the LIBSVM collection, 6430 x 36, z-scored",
        "MIT (the repository it comes from)",
        (
            PublicFile(
                "libsvm/satimage.mat",
                (f"{_DP_RIEMOPT}/data_satimage.mat",),
                "bd9ed6714e24d9d6f2db3a9b176cd35504b88637c727995ee1e76d38149bb775",
                others=("libsvm/satimage", "libsvm/satimage.scale"),
            ),
        ),
    ),
    "ijcnn1": PublicDataSet(
        "ijcnn1 of the LIBSVM collection, 49990 x 14",
        "MIT (the repository it comes from)",
        (
            PublicFile(
                "libsvm/ijcnn1.mat",
                (f"{_DP_RIEMOPT}/data_ijcnn.mat",),
                "1631eb13aeecbbcdfae84e98513e88187043c9049270da85315d148f480007aa",
                others=("libsvm/ijcnn1",),
            ),
        ),
    ),
    "ihc": PublicDataSet(
        "immunohistochemistry of colon tissue, 512 x 512 pixels, from scikit-image",
        "no known copyright restrictions",
        (
            PublicFile(
                "ihc/ihc.png",
                ("https://raw.githubusercontent.com/scikit-image/scikit-image/v0.22.0/skimage/data/ihc.png",),
                "f8dd1aa387ddd1f49d8ad13b50921b237df8e9b262606d258770687b0ef93cef",
            ),
        ),
    ),
    "pathmnist": PublicDataSet(
        "PathMNIST, 107180 RGB images of colon tissue of 28 x 28 pixels in 9 classes, from MedMNIST",
        "CC BY 4.0",
        (
            PublicFile(
                "pathmnist/pathmnist.npz",
                ("https://zenodo.org/record/6496656/files/pathmnist.npz?download=1",),
                md5="a8b06965200029087d5bd730944a56c1",
            ),
        ),
    ),
    "wordnet": PublicDataSet(
        "the mammals of WordNet 3.0, 6540 pairs of 1180 words; made of the installed dictionary (wordnet-base)",
        "WordNet licence",
        (
            PublicFile(
                "wordnet/mammal_closure.tsv",
                (),
                "454c0d0448d50e0dd193418d983833b72bf0e11e8888250087c7451d7ee94eab",
                derive=_mammals,
            ),
        ),
    ),
}


def cache_folder() -> Path:
    """The platform's cache folder for this program."""
    import pooch

    return Path(pooch.os_cache("pri-rfed"))


class DataNotFound(FileNotFoundError):
    """A file of a public data set is in none of the folders it was looked for in."""


@dataclass(frozen=True)
class DataFolders:
    """Where files are looked for, in order."""

    given: Path | None = None
    folders: tuple[Path, ...] = field(init=False)

    def __post_init__(self) -> None:
        named = os.environ.get(ENVIRONMENT)
        folders = [self.given, Path(named) if named else None, cache_folder()]
        object.__setattr__(self, "folders", tuple(folder for folder in folders if folder is not None))

    def candidates(self, path: str) -> Iterator[Path]:
        """Where a file may lie: in every folder, as it is or compressed."""
        plain = path.removesuffix(".gz")
        for folder in self.folders:
            yield folder / plain
            yield folder / f"{plain}.gz"

    def find(self, name: str, path: str, others: tuple[str, ...] = ()) -> Path:
        """The file `path` of the public data set `name`, or the first of `others` that there is. Raises DataNotFound,
        saying where it was looked for."""
        for candidate in (candidate for each in (path, *others) for candidate in self.candidates(each)):
            if candidate.is_file():
                return candidate
        where = ", ".join(map(str, self.folders))
        raise DataNotFound(
            f"{path} is not in {where}; download it with `pri-rfed data get {name}`, "
            f"or say where it is with --data-dir or {ENVIRONMENT}"
        )

    def has(self, name: str, catalogue: dict[str, PublicDataSet] | None = None) -> bool:
        """Whether all files of a public data set are at hand."""
        files = (catalogue or PUBLIC_DATA)[name].files
        return all(
            any(candidate.is_file() for path in (file.path, *file.others) for candidate in self.candidates(path))
            for file in files
        )

    def unverified(self, name: str, catalogue: dict[str, PublicDataSet] | None = None) -> list[str]:
        """The files at hand of a public data set that are not known to be right, each with the reason."""
        reasons = []
        for file in (PUBLIC_DATA if catalogue is None else catalogue)[name].files:
            path = self.find(name, file.path, file.others)
            if path not in {folder / file.path for folder in self.folders}:
                reasons.append(f"{path}: no checksum is known of the file in this form")
            elif not file.is_content(path):
                reasons.append(f"{path}: its checksum is not the known one, {file.known_hash}")
        return reasons


def open_binary(path: Path) -> BinaryIO | gzip.GzipFile:
    """Open a file that may be compressed."""
    return gzip.GzipFile(path) if path.suffix == ".gz" else path.open("rb")


def fetch(name: str, folder: Path, catalogue: dict[str, PublicDataSet] | None = None) -> list[Path]:
    """Download the files of a public data set into `folder`, unless they are there already; returns their paths.

    Raises ValueError for an unknown name or a wrong checksum (the file is then not kept), OSError where no address
    answers.
    """
    import pooch

    catalogue = PUBLIC_DATA if catalogue is None else catalogue
    if name not in catalogue:
        raise ValueError(f"unknown data set {name!r}; there are {', '.join(catalogue)}")
    pooch.get_logger().setLevel(logging.ERROR)
    return [_fetch_file(file, folder) for file in catalogue[name].files]


def _fetch_file(file: PublicFile, folder: Path) -> Path:
    import pooch
    import requests

    target = folder / file.path
    if file.derive is not None:
        return _derive_file(file, file.derive, target)
    failures = []
    for url in file.urls:
        try:
            pooch.retrieve(
                url,
                known_hash=file.known_hash,
                fname=target.name,
                path=target.parent,
                downloader=pooch.HTTPDownloader(timeout=60),
            )
            return target
        except (requests.RequestException, OSError) as error:
            failures.append(f"{url}: {error}")
        except ValueError as error:
            raise ValueError(
                f"{file.path} from {url} has a wrong checksum and was not kept ({file.known_hash} was expected)"
            ) from error
    there = f" (what is there has another checksum than {file.known_hash})" if target.is_file() else ""
    raise OSError(
        f"{file.path} could not be downloaded; fetch it by other means and put it at {target}{there}. "
        f"Tried: {'; '.join(failures)}"
    )


def _derive_file(file: PublicFile, derive: Callable[[], bytes], target: Path) -> Path:
    if not target.is_file():
        content = derive()
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise ValueError(
                f"{file.path}: what was made of the installed files has a wrong checksum and was not kept; they are "
                "of another version"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, content)
    return target
