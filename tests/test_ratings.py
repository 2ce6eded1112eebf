"""Ratings as incomplete columns, and tables in LIBSVM's text form."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import numpy as np
import pytest
from test_data import rng

from pri_rfed.data.download import PUBLIC_DATA, DataFolders, DataNotFound
from pri_rfed.data.ratings import MovieLens, SyntheticRatings
from pri_rfed.data.sources import Ijcnn1, Satimage, read_libsvm
from pri_rfed.experiment.config import load
from pri_rfed.problems import MatrixCompletion

RATINGS = "1::3::5::978300760\n1::1::2::978302109\n7::2::3::978301968\n7::3::1::978300275\n"


def write(folder: Path, path: str, text: str) -> Path:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(text.encode()) if path.endswith(".gz") else text.encode())
    return target


@pytest.mark.parametrize("path", ["movielens/ratings.dat", "movielens/ratings.dat.gz"])
def test_movielens(folders: DataFolders, tmp_path: Path, path: str) -> None:
    assert MovieLens.at_hand(folders) is None
    with pytest.raises(DataNotFound, match=r"movielens/ratings\.dat is not in .*ml-1m\.zip"):
        MovieLens().load(folders, rng())
    write(tmp_path, path, RATINGS)
    assert MovieLens.at_hand(folders) == tmp_path / path
    data = MovieLens(items=4).load(folders, rng())
    np.testing.assert_array_equal(
        data.records, [[[-0.5, 0, 1, 0], [1, 0, 1, 0]], [[0, 0, -1, 0], [0, 1, 1, 0]]]
    )  # three stars are 0, and observed all the same
    MatrixCompletion(4, 2).check_records(data.records)
    assert data.description == "4 ratings of 4 movies by 2 users of MovieLens"
    assert MovieLens().load(folders, rng()).records.shape == (2, 2, 3952)
    with pytest.raises(ValueError, match=r"items = 2: .* rates movie 3"):
        MovieLens(items=2).load(folders, rng())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1::2\n", "user::movie::stars::time"),
        ("a::2::3::4\n", "user::movie::stars::time"),
        ("1::2::3::4\n1::3::6::4\n", "line 2 is no rating"),
        ("1::0::3::4\n", "line 1 is no rating"),
        ("1::2::2.5::4\n", "line 1 is no rating"),
    ],
)
def test_what_are_no_ratings(folders: DataFolders, tmp_path: Path, text: str, said: str) -> None:
    write(tmp_path, "movielens/ratings.dat", text)
    with pytest.raises(ValueError, match=said):
        MovieLens().load(folders, rng())


def test_synthetic_ratings_have_the_shape_of_ratings() -> None:
    source = SyntheticRatings(users=300, items=400, rank=3, mean_ratings=60.0)
    z = source.load(DataFolders(), rng()).records
    MatrixCompletion(400, 3).check_records(z)
    values, observed = z[:, 0], z[:, 1] == 1
    assert set(np.unique(values[observed])) == {-1.0, -0.5, 0.0, 0.5, 1.0}
    counts = observed.sum(axis=1)
    assert counts.min() >= 20 and counts.mean() == pytest.approx(60, rel=0.15) and counts.max() <= 200
    assert observed[:, :40].mean() > 2 * observed[:, -40:].mean(), "the first items are popular ones"
    assert 3 + 2 * values[observed].mean() == pytest.approx(3.6, abs=0.15)
    assert 2 * values[observed].std() == pytest.approx(1.1, abs=0.15)
    np.testing.assert_array_equal(source.load(DataFolders(), rng()).records, z)
    for wrong in ({"users": 0}, {"items": 10}, {"rank": 0}, {"mean_ratings": 500.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            SyntheticRatings(**{"users": 5, "items": 400, **wrong}).load(DataFolders(), rng())  # type: ignore[arg-type]


def test_a_configuration_completes_ratings() -> None:
    tables = {
        "run": {"name": "ratings", "rounds": 1},
        "problem": {"name": "matrix-completion", "r": 2},
        "data": {
            "source": "synthetic-ratings", "users": 30, "items": 40, "mean_ratings": 25.0,
            "partition": {"name": "iid", "agents": 3},
        },
        "trainer": {"name": "dp-rsgd", "clip": 1.0, "noise": 1.0},
    }  # fmt: skip
    problem = load(tables, DataFolders()).problem
    assert isinstance(problem, MatrixCompletion) and problem.record_shape == (2, 40)


LINES = "+1 1:3 3:4\n-1 2:2 # a comment\n1 1:-1 2:0 3:0\n"


@pytest.mark.parametrize("path", ["libsvm/ijcnn1", "libsvm/ijcnn1.gz"])
def test_libsvm_text(folders: DataFolders, tmp_path: Path, path: str) -> None:
    assert not folders.has("ijcnn1")
    with pytest.raises(DataNotFound, match=r"libsvm/ijcnn1\.mat"):
        Ijcnn1().load(folders, rng())
    write(tmp_path, path, LINES)
    assert folders.has("ijcnn1")
    data = Ijcnn1().load(folders, rng())
    np.testing.assert_allclose(data.records, [[0.6, 0, 0.8], [0, 1, 0], [-1, 0, 0]])
    assert data.labels is not None and data.labels.tolist() == [1, -1, 1]


def test_libsvm_text_by_its_own_name(folders: DataFolders, tmp_path: Path) -> None:
    write(tmp_path, "libsvm/satimage.scale", LINES)
    assert Satimage().load(folders, rng()).records.shape == (3, 3)
    assert PUBLIC_DATA["satimage"].files[0].others


@pytest.mark.parametrize("text", ["1 0:3\n", "1 a:3\n", "x 1:2\n", "", "1\n"])
def test_what_is_no_libsvm_text(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, "table", text)
    with pytest.raises(ValueError, match="table is no file of lines `label index:value"):
        read_libsvm(path)
    path.write_bytes(bz2.compress(LINES.encode()))
    with pytest.raises(ValueError, match="is no file of lines"):
        read_libsvm(path)
