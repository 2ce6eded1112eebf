"""Data sources, partitions and downloads."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import re
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from conftest import at_hand
from sklearn.datasets import load_digits

from pri_rfed.data.download import PUBLIC_DATA, DataFolders, DataNotFound, PublicDataSet, PublicFile, fetch
from pri_rfed.data.partitions import IID, PARTITIONS, Dirichlet, Natural
from pri_rfed.data.sources import (
    EMG,
    MNIST,
    SOURCES,
    DataSet,
    Digits,
    Ijcnn1,
    Satimage,
    SyntheticBall,
    SyntheticPCA,
    SyntheticSPD,
    Table,
    read_idx,
    unit_rows,
)
from pri_rfed.manifolds.naming import make_manifold, origin


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_mnist(folder: Path, images: np.ndarray, labels: np.ndarray, prefix: str = "train") -> None:
    (folder / "mnist").mkdir(exist_ok=True)
    (folder / "mnist" / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
    (folder / "mnist" / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(labels))


def write_emg(folder: Path, recordings: list[tuple[str, str, np.ndarray]]) -> None:
    lines = ["time,c0,c1,c2,c3,c4,c5,c6,c7,label,exp"]
    for session, gesture, samples in recordings:
        lines += [f"{t},{','.join(map(str, row))},{gesture},{session}" for t, row in enumerate(samples)]
    (folder / "emg").mkdir()
    (folder / "emg" / "emg.csv").write_text("\n".join(lines) + "\n")


# Images


def test_mnist_is_centred_by_the_constant_and_scaled_record_by_record(tmp_path: Path, folders: DataFolders) -> None:
    images = rng().integers(0, 256, (20, 28, 28))
    write_mnist(tmp_path, images, np.arange(20) % 10)
    data = MNIST().load(folders, rng())
    expected = images[7].ravel() / 255 - 0.1307
    np.testing.assert_allclose(data.records[7], expected / np.linalg.norm(expected), rtol=1e-12)
    assert data.records.shape == (20, 784)
    assert data.labels is not None and data.labels.tolist() == [i % 10 for i in range(20)]
    # Another record changes nothing in this one.
    write_mnist(tmp_path, np.concatenate([images[:1] * 0, images[1:]]), np.arange(20) % 10)
    np.testing.assert_array_equal(MNIST().load(folders, rng()).records[7], data.records[7])


def test_mnist_subset_and_chosen_digits(tmp_path: Path, folders: DataFolders) -> None:
    write_mnist(tmp_path, rng().integers(0, 256, (20, 28, 28)), np.arange(20) % 10, "t10k")
    data = MNIST(subset="test", digits=(3, 5)).load(folders, rng())
    assert data.labels is not None and sorted(data.labels.tolist()) == [3, 3, 5, 5]
    with pytest.raises(ValueError, match=r"digits = \[11\]"):
        MNIST(subset="test", digits=(11,)).load(folders, rng())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\0\0", "no idx file"),
        (struct.pack(">HBBI", 0, 13, 1, 3) + bytes(12), "unsigned bytes"),
        (struct.pack(">HBBI", 0, 8, 1, 5) + bytes(4), "4 bytes where its header says 5"),
    ],
)
def test_broken_idx_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(path)
    compressed = tmp_path / "x.gz"
    compressed.write_bytes(content)
    with pytest.raises(ValueError, match="no idx file"):
        read_idx(compressed)


def test_digits(folders: DataFolders) -> None:
    data = Digits().load(folders, rng())
    images, labels = load_digits(return_X_y=True)
    np.testing.assert_array_equal(data.records, unit_rows(images / 16 - 0.3))
    np.testing.assert_array_equal(data.labels, labels)
    assert data.records.shape == (1797, 64)
    np.testing.assert_allclose(np.linalg.norm(data.records, axis=1), 1)
    assert data.labels is not None and set(data.labels.tolist()) == set(range(10))


# Tables


def test_csv_with_label_and_key(tmp_path: Path, folders: DataFolders) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,site,b,kind\n3,x,4,p\n0,y,0.5,q\n")
    data = Table(path=str(path), label="kind", key="site", scale="ball").load(folders, rng())
    np.testing.assert_allclose(data.records, [[0.6, 0.8], [0, 0.5]])
    assert data.labels is not None and data.labels.tolist() == ["p", "q"]
    assert data.keys is not None and data.keys.tolist() == ["x", "y"]
    with pytest.raises(ValueError, match=r"label = 'sort': no such column; there are a, site, b, kind"):
        Table(path=str(path), label="sort").load(folders, rng())
    with pytest.raises(ValueError, match=r"line 2: 'site' is 'x', which is no finite number; only the columns"):
        Table(path=str(path)).load(folders, rng())


def test_csv_as_spreadsheets_write_it(tmp_path: Path, folders: DataFolders) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(b'\xef\xbb\xbfsite, a,b\r\n K\xc3\xb6ln ,1,2\r\n\r\n"K\xc3\xb6ln",3,4\r\n\r\n')
    data = Table(path=str(path), key="site").load(folders, rng())
    np.testing.assert_array_equal(data.records, [[1, 2], [3, 4]])
    assert data.keys is not None and data.keys.tolist() == ["Köln", "Köln"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("site,a,b\nx,1,5,2,5\n", "line 2 has 5 entries and the header 3; is there a decimal comma?"),
        ("site,a,b\nx,1,2\n\ny,1\n", "line 4 has 2 entries and the header 3"),
        ("site,a,b\nx,1,2\n ,1,2\n", "line 3 has no 'site', which says who holds it"),
        ("site,a,b\nx,1,\n", "line 2: 'b' is '', which is no finite number"),
        ("site,a,b\nx,1,2\nx,NaN,2\n", "line 3: 'a' is 'NaN', which is no finite number"),
        ("site,a,b\nx,1e400,2\n", "line 2: 'a' is '1e400', which is no finite number"),
        ("site;a;b\nx;1,5;2,5\n", "columns must be separated by commas, not by ';'"),
        ("1.5,2,3\n1,2,3\n", "line 1 holds numbers, where the names of columns are needed"),
        ('site,a,b\nx,"1,2\n', "it is no comma-separated table in UTF-8: unexpected end"),
        ("site,a,b\nKöln,1,2\n".encode("latin-1"), "it is no comma-separated table in UTF-8: 'utf-8' codec"),
        ("site,a,b\n", "a header and at least one record are needed"),
    ],
)
def test_what_is_wrong_in_a_csv_file_is_said_with_its_line(
    tmp_path: Path, folders: DataFolders, content: str | bytes, message: str
) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=re.escape(f"path = {str(path)!r}: {message}")):
        Table(path=str(path), key="site").load(folders, rng())


def test_npz_and_npy(tmp_path: Path, folders: DataFolders) -> None:
    matrices = np.stack([np.eye(3)] * 4)
    np.savez(tmp_path / "m.npz", records=matrices, keys=np.array(["a", "a", "b", "b"]))
    data = Table(path=str(tmp_path / "m.npz"), unit=2.0).load(folders, rng())
    np.testing.assert_array_equal(data.records, matrices / 2)
    assert data.labels is None and data.keys is not None
    np.save(tmp_path / "m.npy", matrices)
    np.testing.assert_array_equal(Table(path=str(tmp_path / "m.npy")).load(folders, rng()).records, matrices)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"values": np.eye(2)}, "no array `records`"),
        ({"records": np.array([[0.0, np.nan]])}, "record 0 holds NaN"),
        ({"records": np.eye(2), "labels": np.arange(3)}, "labels have shape"),
        ({"records": np.array([[object()]])}, "allow_pickle|Object arrays"),
        ({"records": np.zeros(3)}, "not shape"),
    ],
)
def test_broken_tables_are_refused(
    tmp_path: Path, folders: DataFolders, arrays: dict[str, np.ndarray], message: str
) -> None:
    np.savez(tmp_path / "m.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        Table(path=str(tmp_path / "m.npz")).load(folders, rng())


@pytest.mark.parametrize("unit", [0.0, -2.0, float("nan"), float("inf")])
def test_a_unit_that_is_none_is_refused(tmp_path: Path, folders: DataFolders, unit: float) -> None:
    np.save(tmp_path / "m.npy", np.eye(2))
    with pytest.raises(ValueError, match=f"unit = {unit}: must be a positive finite number"):
        Table(path=str(tmp_path / "m.npy"), unit=unit).load(folders, rng())


def test_a_missing_table_is_named(folders: DataFolders) -> None:
    with pytest.raises(ValueError, match=r"path = 'nowhere.csv'"):
        Table(path="nowhere.csv").load(folders, rng())


# Covariances


def test_emg_windows_never_cross_recordings(tmp_path: Path, folders: DataFolders) -> None:
    samples = rng().integers(100, 150, (100, 8))
    write_emg(tmp_path, [("s1", "rest", samples[:45]), ("s1", "rock", samples[45:70]), ("s2", "rock", samples[70:])])
    data = EMG(window=20).load(folders, rng())
    assert data.keys is not None and data.labels is not None
    assert data.keys.tolist() == ["s1/rest", "s1/rest", "s1/rock", "s2/rock"]
    assert data.labels.tolist() == ["rest", "rest", "rock", "rock"]
    np.testing.assert_allclose(data.records[2], (np.cov(samples[45:65].T) + np.eye(8)) / 4, rtol=1e-12)
    with pytest.raises(ValueError, match="window = 300"):
        EMG(window=300).load(folders, rng())


def test_another_table_is_not_taken_for_emg(tmp_path: Path, folders: DataFolders) -> None:
    (tmp_path / "emg").mkdir()
    (tmp_path / "emg" / "emg.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    with pytest.raises(ValueError, match="is not the EMG table"):
        EMG().load(folders, rng())


# Synthetic


@pytest.mark.parametrize(("scale", "tolerance"), [("ball", 0.02), ("unit", 0.1)])
def test_synthetic_pca_has_its_eigengap(folders: DataFolders, scale: Literal["ball", "unit"], tolerance: float) -> None:
    source = SyntheticPCA(records=20000, dimension=20, gap=0.3, scale=scale)
    records = source.load(folders, rng()).records
    norms = np.linalg.norm(records, axis=1)
    assert norms.max() <= 1 + 1e-12 and (norms.min() > 0.999) == (scale == "unit")
    values = np.linalg.eigvalsh(records.T @ records / len(records))[::-1]
    relative = np.sqrt(values[:7] / values[0])
    np.testing.assert_allclose(relative[1:6], 1 - 0.3 * np.array([1, 1.1, 1.2, 1.3, 1.4]), atol=tolerance)
    assert relative[6] < 0.2
    np.testing.assert_array_equal(source.load(folders, rng()).records, records)


def test_synthetic_spd_lies_in_its_ball(folders: DataFolders) -> None:
    records = SyntheticSPD(records=500, size=3, freedom=6, radius=1.5).load(folders, rng()).records
    assert records.shape == (500, 3, 3)
    distances = np.linalg.norm(np.log(np.linalg.eigvalsh(records)), axis=1)
    assert distances.max() <= 1.5 and distances.max() > 1.3
    with pytest.raises(ValueError, match=r"radius = 0\.001"):
        SyntheticSPD(radius=0.001).load(folders, rng())


@pytest.mark.parametrize("offset", [0.0, 0.2])
@pytest.mark.parametrize(
    ("name", "shape"), [("sphere", (3,)), ("hyperboloid", (4,)), ("poincare-ball", (2,)), ("spd-log-euclidean", (3, 3))]
)
def test_synthetic_ball(folders: DataFolders, name: str, shape: tuple[int, ...], offset: float) -> None:
    source = SyntheticBall(manifold=name, shape=shape, records=400, radius=0.5, offset=offset)
    records = source.load(folders, rng()).records
    manifold = make_manifold(name, shape)
    assert manifold.check_point(records)
    distances = manifold.dist(origin(manifold), records)
    assert distances.max() <= 0.5 + 1e-9 and distances.max() > 0.4
    if offset == 0:
        assert np.quantile(distances, 0.5) == pytest.approx(0.25, abs=0.05), "uniform distances"


def test_a_ball_that_does_not_fit_is_refused(folders: DataFolders) -> None:
    with pytest.raises(ValueError, match=r"radius = 4\.0: must be positive and below the injectivity radius 3\.14"):
        SyntheticBall(radius=4.0).load(folders, rng())
    with pytest.raises(ValueError, match=r"offset = 0\.5"):
        SyntheticBall(radius=0.4, offset=0.5).load(folders, rng())
    with pytest.raises(ValueError, match="manifold = 'spere': unknown; did you mean sphere"):
        SyntheticBall(manifold="spere").load(folders, rng())


# The real files, where they are at hand


@pytest.mark.parametrize("folder", at_hand("mnist/train-images-idx3-ubyte.gz", "mnist/train-labels-idx1-ubyte.gz"))
def test_real_mnist(folder: Path) -> None:
    data = MNIST().load(DataFolders(folder), rng())
    assert data.records.shape == (60000, 784)
    assert data.labels is not None
    assert np.bincount(data.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


@pytest.mark.parametrize("folder", at_hand("emg/emg.csv.gz"))
def test_real_emg(folder: Path) -> None:
    data = EMG().load(DataFolders(folder), rng())
    assert data.records.shape == (3600, 8, 8)
    parts, names = Natural().split(data, rng())
    assert len(parts) == 20 and {len(part) for part in parts} == {180}
    assert names[0] == "mg_s1/ok"
    assert np.linalg.eigvalsh(data.records).min() >= 0.25  # floor / unit
    content = hashlib.sha256(gzip.decompress((folder / "emg" / "emg.csv.gz").read_bytes())).hexdigest()
    assert content == PUBLIC_DATA["emg"].files[0].sha256


@pytest.mark.parametrize("folder", at_hand("libsvm/satimage.mat", "libsvm/ijcnn1.mat"))
def test_real_libsvm(folder: Path) -> None:
    assert Satimage().load(DataFolders(folder), rng()).records.shape == (6430, 36)
    assert Ijcnn1().load(DataFolders(folder), rng()).records.shape == (49990, 14)
    for name in ("satimage", "ijcnn1"):
        (file,) = PUBLIC_DATA[name].files
        assert hashlib.sha256((folder / file.path).read_bytes()).hexdigest() == file.sha256


# Partitions


def labelled(n: int = 1000, labels: int = 10) -> DataSet:
    return DataSet(
        np.arange(n, dtype=float)[:, None], "numbers", labels=np.arange(n) % labels, keys=np.arange(n) // 100
    )


@pytest.mark.parametrize(
    "partition",
    [IID(agents=7), Dirichlet(agents=7, alpha=0.1, minimum=20), Natural(), IID(agents=7, per_agent=100, equal=True)],
    ids=lambda p: p.name,
)
def test_no_record_has_two_agents_and_none_is_lost_unasked(partition: IID | Dirichlet | Natural) -> None:
    parts, names = partition.split(labelled(), rng())
    joined = np.concatenate(parts)
    assert len(np.unique(joined)) == len(joined)
    assert len(names) == len(set(names)) == len(parts)
    if partition.per_agent is None and not partition.equal:
        assert len(joined) == 1000
    again, _ = partition.split(labelled(), rng())
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    other, _ = partition.split(labelled(), rng(1))
    assert not np.array_equal(other[0], parts[0])


def test_iid_sizes() -> None:
    assert sorted(map(len, IID(agents=7).split(labelled(), rng())[0])) == [142] * 1 + [143] * 6
    assert {len(p) for p in IID(agents=7, equal=True).split(labelled(), rng())[0]} == {142}
    assert {len(p) for p in IID(agents=7, per_agent=50).split(labelled(), rng())[0]} == {50}
    with pytest.raises(ValueError, match="agents = 7: they need 1001 records, and the data set has 1000"):
        IID(agents=7, per_agent=143).split(labelled(), rng())


def test_dirichlet_concentrates_labels_as_alpha_falls() -> None:
    def purity(alpha: float) -> float:
        data = labelled(20000)
        parts, _ = Dirichlet(agents=10, alpha=alpha, minimum=5).split(data, rng())
        assert data.labels is not None
        assert min(map(len, parts)) >= 5
        return float(np.mean([np.bincount(data.labels[p], minlength=10).max() / len(p) for p in parts]))

    assert purity(100.0) < 0.2 < 0.4 < purity(0.1)


def test_partitions_need_what_they_divide_by() -> None:
    bare = DataSet(np.zeros((10, 2)), "zeros")
    with pytest.raises(ValueError, match="no labels"):
        Dirichlet(agents=2, alpha=1).split(bare, rng())
    with pytest.raises(ValueError, match="no natural key"):
        Natural().split(bare, rng())
    with pytest.raises(ValueError, match="alpha = 0"):
        Dirichlet(agents=2, alpha=0)
    with pytest.raises(ValueError, match="per_agent = 0"):
        Natural(per_agent=0)
    assert set(PARTITIONS) == {"iid", "dirichlet", "natural"}


# Downloads


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """A web server on the loopback interface that serves `tmp_path / served`, and what it was asked for."""
    asked: list[str] = []
    root = tmp_path / "served"
    root.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, directory=str(root), **kwargs)  # type: ignore[arg-type]

        def log_message(self, format: str, *args: object) -> None:
            asked.append(self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}", asked
        httpd.shutdown()
        thread.join()


def catalogue(*urls: str, content: bytes) -> dict[str, PublicDataSet]:
    digest = hashlib.sha256(content).hexdigest()
    return {"numbers": PublicDataSet("numbers", "none", (PublicFile("numbers/n.bin", urls, digest),))}


def test_a_download_is_checked_kept_and_found(
    tmp_path: Path, folders: DataFolders, server: tuple[str, list[str]]
) -> None:
    url, asked = server
    (tmp_path / "served" / "n.bin").write_bytes(b"0123")
    known = catalogue(f"{url}/n.bin", content=b"0123")
    cache = tmp_path / "cache"
    with pytest.raises(DataNotFound, match=r"numbers/n.bin is not in .*pri-rfed data get numbers"):
        folders.find("numbers", "numbers/n.bin")
    assert not folders.has("numbers", known)
    assert fetch("numbers", cache, known) == [cache / "numbers" / "n.bin"]
    assert folders.find("numbers", "numbers/n.bin").read_bytes() == b"0123"
    assert folders.has("numbers", known)
    requests = len(asked)
    fetch("numbers", cache, known)
    assert len(asked) == requests, "what is there is not downloaded again"


def test_a_wrong_checksum_is_refused_and_named(tmp_path: Path, server: tuple[str, list[str]]) -> None:
    url, _ = server
    (tmp_path / "served" / "n.bin").write_bytes(b"tampered")
    with pytest.raises(ValueError, match=r"numbers/n.bin from http://127.0.0.1:\d+/n.bin has a wrong checksum"):
        fetch("numbers", tmp_path / "cache", catalogue(f"{url}/n.bin", content=b"0123"))
    assert not list((tmp_path / "cache").rglob("n.bin"))


def test_the_next_address_is_tried(tmp_path: Path, server: tuple[str, list[str]]) -> None:
    url, _ = server
    (tmp_path / "served" / "n.bin").write_bytes(b"0123")
    fetch("numbers", tmp_path / "cache", catalogue(f"{url}/gone.bin", f"{url}/n.bin", content=b"0123"))
    with pytest.raises(OSError, match=r"could not be downloaded; .*gone.bin: 404"):
        fetch("numbers", tmp_path / "other", catalogue(f"{url}/gone.bin", content=b"0123"))


def test_an_unknown_data_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown data set 'minst'; there are mnist"):
        fetch("minst", tmp_path)


def test_folders_are_searched_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("given", "named"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.bin").write_text(name)
    monkeypatch.setenv("PRIRFED_DATA", str(tmp_path / "named"))
    assert DataFolders(tmp_path / "given").find("x", "x.bin").read_text() == "given"
    assert DataFolders().find("x", "x.bin").read_text() == "named"


def test_every_source_with_files_can_be_downloaded() -> None:
    assert {cls.public for cls in SOURCES.values()} - {None} <= set(PUBLIC_DATA)
    for data in PUBLIC_DATA.values():
        for file in data.files:
            assert (len(file.sha256), len(file.md5)) in ((64, 0), (0, 32))
            assert all(url.startswith("https://") for url in file.urls)
