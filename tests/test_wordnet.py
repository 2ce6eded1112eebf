"""WordNet's mammals: the closure and where it comes from, embeddings, features, records."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from conftest import at_hand

from pri_rfed.data import download, wordnet
from pri_rfed.data.download import PUBLIC_DATA, DataFolders, DataNotFound, fetch
from pri_rfed.data.partitions import Natural
from pri_rfed.data.wordnet import (
    CLOSURE,
    DICTIONARY,
    Hierarchy,
    PoincareEmbedding,
    WordNet,
    closure_of,
    eigenmap,
    read_closure,
    reconstruction,
    to_ball,
    to_hyperboloid,
)
from pri_rfed.manifolds import Hyperboloid, PoincareBall
from pri_rfed.problems import HyperbolicStructuredPrediction
from pri_rfed.problems.structured_prediction import kernel_weights

# What WordNet's files look like: horse has two meanings, of which the animal is the first; Seattle Slew is an instance.
LICENCE = "  1 This software and database is being provided to you, the LICENSEE\n"
NOUNS = LICENCE + (
    "00000010 03 n 01 animal 0 001 ~ 00000020 n 0000 | a living being  \n"
    "00000020 05 n 02 mammal 0 mammalian 0 002 @ 00000010 n 0000 ~ 00000030 n 0000 | warm-blooded  \n"
    "00000030 05 n 01 ungulate 0 002 @ 00000020 n 0000 + 00000099 v 0101 | hoofed; @ of the text is none  \n"
    "00000040 05 n 02 horse 0 Equus_caballus 0 001 @ 00000030 n 0000 | solid-hoofed  \n"
    "00000050 06 n 01 horse 0 001 @ 00000070 n 0000 | a padded gymnastic apparatus  \n"
    "00000060 18 n 01 Seattle_Slew 0 001 @i 00000040 n 0000 | thoroughbred  \n"
    "00000070 06 n 01 apparatus 0 000 | equipment  \n"
    "00000080 05 n 01 tusker 0 001 @ 00000020 n 0000 | any mammal with tusks  \n"
    "00000090 05 n 01 pet_horse 0 002 @ 00000040 n 0000 @ 00000020 n 0000 | has two parents  \n"
)
INDEX = LICENCE + "".join(
    f"{word} n {len(at)} 1 @ {len(at)} 0 {' '.join(at)}  \n"
    for word, at in {
        "animal": ["00000010"], "apparatus": ["00000070"], "horse": ["00000040", "00000050"],
        "mammal": ["00000020"], "pet_horse": ["00000090"], "seattle_slew": ["00000060"], "tusker": ["00000080"],
        "ungulate": ["00000030"],
    }.items()
)  # fmt: skip
BELOW = {
    ("ungulate.n.01", "mammal.n.01"), ("horse.n.01", "ungulate.n.01"), ("horse.n.01", "mammal.n.01"),
    ("seattle_slew.n.01", "horse.n.01"), ("seattle_slew.n.01", "ungulate.n.01"), ("seattle_slew.n.01", "mammal.n.01"),
    ("pet_horse.n.01", "horse.n.01"), ("pet_horse.n.01", "ungulate.n.01"), ("pet_horse.n.01", "mammal.n.01"),
}  # fmt: skip


@pytest.fixture
def dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "dict" / "data.noun"
    path.parent.mkdir()
    path.write_text(NOUNS)
    path.with_name("index.noun").write_text(INDEX)
    monkeypatch.setattr(wordnet, "DICTIONARY", path)
    return path


def tree(branches: int = 3, depth: int = 3) -> Hierarchy:
    """Every word but the leaves has so many below it."""
    words = [""]
    for _ in range(depth):
        words += [f"{word}{i}" for word in words if len(word) == max(map(len, words)) for i in range(branches)]
    return Hierarchy.of((a or "root", b or "root") for a in words for b in words if a != b and a.startswith(b))


def pairs(graph: Hierarchy) -> set[tuple[str, str]]:
    return {(graph.words[a], graph.words[b]) for a, b in graph.pairs}


# The closure


def test_the_closure_follows_kinds_and_instances_below_the_root(dictionary: Path) -> None:
    graph = closure_of(dictionary)
    assert pairs(graph) == BELOW
    assert graph.words[graph.index("horse")] == "horse.n.01"
    assert pairs(closure_of(dictionary, left_out=frozenset())) == BELOW | {("tusker.n.01", "mammal.n.01")}
    with pytest.raises(ValueError, match=r"root = 'whale\.n\.01'"):
        closure_of(dictionary, "whale.n.01")
    with pytest.raises(ValueError, match="word = 'whale'"):
        graph.index("whale")


def test_files_of_another_kind_are_refused(dictionary: Path, tmp_path: Path) -> None:
    dictionary.write_text("no dictionary\n")
    with pytest.raises(ValueError, match="is no file of WordNet's nouns"):
        closure_of(dictionary)
    (tmp_path / "x.tsv").write_text("a,b\n")
    with pytest.raises(ValueError, match="is no closure"):
        read_closure(tmp_path / "x.tsv")
    (tmp_path / "x.tsv").write_text("id1\tid2\nhorse.n.01\n")
    with pytest.raises(ValueError, match="two words"):
        read_closure(tmp_path / "x.tsv")


def test_a_closure_is_written_as_it_is_read(dictionary: Path, tmp_path: Path) -> None:
    graph = closure_of(dictionary)
    (tmp_path / "x.tsv").write_bytes(graph.to_tsv() + b"mammal.n.01\tmammal.n.01\n")  # as some copies have it
    again = read_closure(tmp_path / "x.tsv")
    assert again.words == graph.words and (again.pairs == graph.pairs).all()


def test_data_get_makes_the_closure_of_the_installed_dictionary(
    dictionary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="another version"):
        fetch("wordnet", tmp_path / "data")
    assert not (tmp_path / "data").exists()
    monkeypatch.setattr(wordnet, "DICTIONARY", tmp_path / "none")
    with pytest.raises(DataNotFound, match="apt install wordnet-base"):
        fetch("wordnet", tmp_path / "data")


@pytest.mark.slow
@pytest.mark.parametrize("dictionary", [DICTIONARY] if DICTIONARY.is_file() else [])
def test_the_installed_dictionary_has_the_published_closure(dictionary: Path, tmp_path: Path) -> None:
    (path,) = fetch("wordnet", tmp_path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == PUBLIC_DATA["wordnet"].files[0].sha256


@pytest.mark.parametrize("folder", at_hand(CLOSURE))
def test_the_real_closure(folder: Path) -> None:
    graph = read_closure(folder / CLOSURE)
    assert (len(graph.words), len(graph.pairs)) == (1180, 6540)
    assert hashlib.sha256(graph.to_tsv()).hexdigest() == PUBLIC_DATA["wordnet"].files[0].sha256
    related = graph.related()
    assert related[:, graph.index("mammal")].sum() == 1179
    # A closure: what is a kind of a kind is a kind; and nobody is their own.
    assert not ((related.astype(int) @ related.astype(int) > 0) & ~related).any()
    assert not related.diagonal().any()


def test_parents_are_the_pairs_with_nothing_between() -> None:
    graph = tree()
    found = {(graph.words[a], graph.words[b]) for a, b in graph.parents()}
    assert found == {(word, word[:-1] or "root") for word in graph.words if word != "root"}


# Embeddings


def test_an_embedding_tells_the_hierarchy_and_depends_on_the_seed_alone() -> None:
    graph = tree()
    settings = {"epochs": 150, "negatives": 10, "batch": 16}
    points = PoincareEmbedding(**settings).train(graph)
    assert PoincareBall(2).check_point(points)
    found = reconstruction(graph, points)
    assert found.mean_rank < 1.5 and found.mean_average_precision > 0.85
    norms = np.linalg.norm(points, axis=1)
    assert norms[graph.index("root")] == norms.min(), "what all are a kind of lies in the middle"
    np.testing.assert_array_equal(points, PoincareEmbedding(**settings).train(graph))
    assert (points != PoincareEmbedding(**settings, seed=1).train(graph)).any()
    short = PoincareEmbedding(**settings, radius=1.0).train(graph)
    assert PoincareBall(2).dist(np.zeros(2), short).max() <= 1 + 1e-9


def test_the_gradient_of_the_embedding_is_that_of_its_loss() -> None:
    graph, ball, rng = tree(2, 2), PoincareBall(2), np.random.default_rng(0)
    points = rng.uniform(-0.6, 0.6, (len(graph.words), 2))
    related = graph.related()
    np.fill_diagonal(related, True)
    chosen, drawn = graph.pairs[[0, 3, 4]], rng.integers(0, len(points), (3, 5))

    def loss(x: np.ndarray) -> float:
        total = 0.0
        for (u, v), others in zip(chosen, drawn, strict=True):
            away = [ball.dist(x[u], x[o]) for o in others if not related[u, o]]
            near = ball.dist(x[u], x[v])
            total += near + np.log(np.exp(-near) + np.exp(-np.array(away)).sum())
        return float(total)

    gradient = wordnet._gradient(ball, points, chosen, drawn, related)
    v = rng.standard_normal(points.shape)
    slope = (loss(points + 1e-6 * v) - loss(points - 1e-6 * v)) / 2e-6
    assert ball.inner(points, gradient, v).sum() == pytest.approx(slope, rel=1e-6)


def test_ranks_and_precisions() -> None:
    graph = Hierarchy.of([("a", "c"), ("b", "c")])  # d is nobody's
    graph = Hierarchy((*graph.words, "d"), graph.pairs)
    # b lies between a and c, and a little nearer to a: for both of them c has rank 2.
    points = np.array([[0.0, 0], [0.1, 0], [0.2, 0], [0.4, 0]])
    assert reconstruction(graph, points) == (2.0, 0.5)
    perfect = reconstruction(graph, np.array([[0.0, 0], [0.0, 0.02], [0.0, 0.01], [0.4, 0]]))
    assert perfect == (1.0, 1.0)


def test_embeddings_are_cached(folders: DataFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, embedding = tree(2, 2), PoincareEmbedding(epochs=3)
    points = embedding.cached(graph)
    (file,) = (tmp_path / "cache" / "wordnet").iterdir()
    monkeypatch.setattr(PoincareEmbedding, "train", None)
    np.testing.assert_array_equal(embedding.cached(graph), points)
    monkeypatch.undo()
    monkeypatch.setattr(download, "cache_folder", lambda: tmp_path / "cache")
    file.write_bytes(b"cut off")
    np.testing.assert_array_equal(embedding.cached(graph), points)
    (tmp_path / "blocked").write_text("")
    monkeypatch.setattr(download, "cache_folder", lambda: tmp_path / "blocked")
    np.testing.assert_array_equal(embedding.cached(graph), points)


def test_both_models_of_hyperbolic_space_have_the_same_distances() -> None:
    ball, hyperboloid, rng = PoincareBall(2), Hyperboloid(2), np.random.default_rng(1)
    x, y = ball.random_point(rng, (20,)), ball.random_point(rng, (20,))
    assert hyperboloid.check_point(to_hyperboloid(x))
    np.testing.assert_allclose(hyperboloid.dist(to_hyperboloid(x), to_hyperboloid(y)), ball.dist(x, y), rtol=1e-9)
    np.testing.assert_allclose(to_ball(to_hyperboloid(x)), x, rtol=1e-12)


# Features


def test_the_eigenmap_solves_the_generalised_eigenproblem() -> None:
    graph = tree(3, 3)
    features = eigenmap(graph)
    related = graph.related()
    adjacency = (related | related.T).astype(float)
    degrees = adjacency.sum(axis=0)
    every = np.sort(np.linalg.eigvals(adjacency / degrees[:, None]).real)[::-1]
    for k in range(3):
        f = features[:, k]
        # A f = lambda D f, of the largest lambda below 1.
        np.testing.assert_allclose(adjacency @ f, every[k + 1] * degrees * f, atol=1e-9)
        assert f @ (degrees * f) == pytest.approx(1)
        assert degrees @ f == pytest.approx(0, abs=1e-9)
        assert f[np.abs(f).argmax()] > 0
    np.testing.assert_array_equal(features, eigenmap(graph))


# Records


def test_every_group_weighs_its_own_words(folders: DataFolders, tmp_path: Path) -> None:
    graph = tree()
    (tmp_path / "wordnet").mkdir()
    (tmp_path / CLOSURE).write_bytes(graph.to_tsv())
    source = WordNet(word="01", groups=3, epochs=6, width=0.1, radius=4.0)
    data = source.load(folders, np.random.default_rng(0))
    words = (len(graph.words) - 1) // 3
    assert data.records.shape == (3 * words, 4) and data.keys is not None
    parts, names = Natural().split(data, np.random.default_rng(1))
    assert [len(part) for part in parts] == [words] * 3 and names == ["0", "1", "2"]
    labels, features = source.labels(folders), eigenmap(graph)
    at = [int(np.argmin(np.abs(labels - y).sum(axis=1))) for y in data.records[:, 1:]]
    assert len(set(at)) == len(at) and graph.index("01") not in at
    for g in range(3):
        own = at[g * words : (g + 1) * words]
        expected = words * kernel_weights(features[own], features[graph.index("01")], 0.1, 1e-5)
        np.testing.assert_allclose(data.records[g * words : (g + 1) * words, 0], expected, rtol=1e-6)
    HyperbolicStructuredPrediction(4, radius=4.0 + 1e-6).check_records(data.records)
    with pytest.raises(ValueError, match="groups = 1000"):
        WordNet(word="01", groups=1000, epochs=6, radius=4.0).load(folders, np.random.default_rng(0))
    with pytest.raises(ValueError, match="word = 'cow'"):
        WordNet(word="cow", epochs=6, radius=4.0).load(folders, np.random.default_rng(0))
