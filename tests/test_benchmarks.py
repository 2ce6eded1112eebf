"""The benchmark table: how figures are judged, kept and shown. Nothing here depends on how fast anything is."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

import benchmarks.__main__ as program
from benchmarks import peers
from benchmarks.federation import run
from benchmarks.peers.clock import fastest, side_by_side
from benchmarks.rows.growth import fitted
from benchmarks.table import Row, amount, limited, page, read, worst, write
from pri_rfed.data.agents import Records
from pri_rfed.manifolds import SPDAffineInvariant, Sphere
from pri_rfed.problems import FrechetMean, PrincipalEigenvector
from pri_rfed.randomness import AgentStreams
from pri_rfed.training.dp_rsgd import DPRSGD


def test_a_ratio_is_how_many_times_better_than_the_reference() -> None:
    assert Row("a", 2.0, "a peer", 12.0, 5.0).ratio == 6
    assert Row("a", 2.0, "a peer", 12.0, 5.0).met is True
    assert Row("a", 2.0, "a peer", 12.0, 7.0).met is False
    assert Row("a", 2.0, "a floor", 1.0, 1 / 1.5).met is False
    assert Row("a", 2.0, "a floor", 1.5, 1 / 1.5).met is True
    assert limited("a", 4.0, 5.0).met is True and limited("a", 6.0, 5.0).met is False
    assert Row("a", 2.0, "a peer", 1.0).met is None
    assert Row("a", None, "a peer", 1.0, 2.0).met is None, "what was not measured is neither met nor missed"


def test_the_worst_row_carries_the_others() -> None:
    chosen = worst([Row("a", 1.0, "b", 9.0), Row("c", 1.0, "d", 3.0), Row("e", 1.0, "f", 5.0)])
    assert chosen.name == "c" and [detail["ratio"] for detail in chosen.details] == [9, 3, 5]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "s", "–"), (12.345, "s", "12.3 s"), (1.5e-3, "s", "1.5 ms"), (2e-6, "s", "2 µs"), (5e-9, "s", "5 ns"),
        (3 * 2**30, "B", "3 GiB"), (16, "B", "16 B"), (0.987, "exponent", "exponent 0.99"),
    ],
)  # fmt: skip
def test_amounts(value: float | None, unit: str, text: str) -> None:
    assert amount(value, unit) == text


def fake(name: str, found: list[Row], error: Exception | None = None) -> types.ModuleType:
    def rows(quick: bool) -> Iterator[Row]:
        yield from found
        if error is not None:
            raise error

    module = types.ModuleType(name)
    module.__doc__ = "A heading.\n\nWhat it\nmeasures.\n"
    module.rows = rows  # type: ignore[attr-defined]
    module.versions = lambda: {"peer": "1.2"}  # type: ignore[attr-defined]
    return module


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> dict[str, types.ModuleType]:
    modules: dict[str, types.ModuleType] = {}
    monkeypatch.setattr(program, "load", modules.__getitem__)
    monkeypatch.setattr(program, "names", lambda: list(modules))
    return modules


def test_from_rows_to_the_page(
    tmp_path: Path, groups: dict[str, types.ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups["one"] = fake("one", [Row("a step", 1e-3, "a peer", 5e-3, 4.0, note="Said once."), limited("b", 9.0, 2.0)])
    groups["two"] = fake("two", [Row("c", 1.0)], peers.PeerUnavailable("no network"))
    document = tmp_path / "docs" / "benchmarks.md"
    document.parent.mkdir()
    document.write_text(f"before\n{program.BEGIN}\nold\n{program.END}\nafter\n", encoding="utf-8")
    monkeypatch.setattr(program, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(program, "DOCS", document.parent)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "one"])
    assert program.main() == 1, "a figure was missed"
    monkeypatch.setattr(sys, "argv", ["benchmarks", "two"])
    assert program.main() == 0, "what is left out is not missed"
    text = document.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "1 of 2 wanted figures were met.\nMissed" in text and "- b: 0.22 of what was wanted" in text
    assert "| a step | 1 ms | a peer | 5 ms | 5 x | 4 x | met |" in text
    assert "| b | 9 s |  |  |  | at most 2 s | **missed** |" in text
    assert "Left out: no network" in text and "peer 1.2" in text and "What it measures." in text
    assert text.count("Said once.") == 1
    kept = json.loads((tmp_path / "results" / "table.json").read_text(encoding="utf-8"))
    assert list(kept) == ["one", "two"] and kept["one"]["rows"][0]["met"] is True
    before = text
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick"])
    program.main()
    assert document.read_text(encoding="utf-8") == before, "a quick run writes nothing"
    monkeypatch.setattr(sys, "argv", ["benchmarks", "three"])
    with pytest.raises(SystemExit):
        program.main()


def test_groups_that_were_not_measured_stay(tmp_path: Path) -> None:
    around = {"title": "T", "about": "", "date": "d", "machine": "m", "cores": 2, "load": 0.0, "seconds": 1.0,
              "quick": True, "versions": {}}  # fmt: skip
    write(tmp_path, {"a": around | {"rows": [Row("x", 1.0).to_dict()]}})
    write(tmp_path, {"b": around | {"rows": [Row("y", 2.0).to_dict()]}})
    assert list(read(tmp_path)) == ["a", "b"]
    assert "A quick run" in page(read(tmp_path)) and (tmp_path / "table.md").read_text(encoding="utf-8")


def test_every_group_has_a_heading_and_rows() -> None:
    names = program.names()
    assert len(names) == len(set(names)) > 5
    for name in names:
        module = program.load(name)
        assert (module.__doc__ or "").partition("\n")[0].endswith(".") and callable(module.rows)
    assert sum(program.BEGIN in path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")) == 1


def test_a_script_of_a_peer_is_run_and_its_failure_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "python", lambda environment: Path(sys.executable))
    script = tmp_path / "script.py"
    script.write_text("import json, sys\nprint('noise')\nprint(json.dumps([json.loads(sys.argv[1])['x'] * 2]))\n")
    assert peers.run("geometry", script, {"x": 21}) == [42]
    script.write_text("raise SystemExit('it broke')\n")
    with pytest.raises(peers.PeerUnavailable, match="it broke"):
        peers.run("geometry", script, {})


def test_pins_name_exact_versions() -> None:
    assert all(package.count("==") == 1 for packages in peers.ENVIRONMENTS.values() for package in packages)
    assert set(peers.versions("geometry")) == {"geomstats", "pymanopt"}


def test_times_are_of_single_calls() -> None:
    calls: list[str] = []
    assert fastest(lambda: calls.append("a"), within=1e-3, repeats=2) > 0 and calls
    calls.clear()
    assert len(side_by_side(lambda: calls.append("a"), lambda: calls.append("b"), repeats=3)) == 2
    assert "".join(calls) == "abababab"


def test_exponents() -> None:
    x = np.array([1.0, 2.0, 4.0, 8.0])
    assert fitted(x, 3 * x**1.5) == pytest.approx(1.5)


@pytest.mark.parametrize("kind", ["SPD", "sphere"])
def test_a_peer_takes_the_step_that_it_is_compared_with(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise, and with a clip that is at work."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "peers"))
    descent = importlib.import_module("descent")
    monkeypatch.setattr(descent, "SIGMA", 0.0)
    rng = np.random.default_rng(1)
    manifold = SPDAffineInvariant(4) if kind == "SPD" else Sphere(9)
    w, z = manifold.random_point(rng, (2,))
    problem = FrechetMean(manifold) if isinstance(manifold, SPDAffineInvariant) else PrincipalEigenvector(9)
    move = "exp" if kind == "SPD" else "retract"
    monkeypatch.setattr(descent, "CLIP", 0.1)
    trainer = DPRSGD(steps=1, step_size=descent.STEP, move=move, clip=0.1, noise=0.0)
    ours = trainer.train(problem, w, Records(z[None, None], np.ones(1, dtype=np.int64)), AgentStreams(0, 0, [0]))
    theirs = descent.with_pymanopt(kind, 4 if kind == "SPD" else 9)(w, z, rng)
    assert np.abs(ours[0] - w).max() > 1e-6
    np.testing.assert_allclose(theirs, ours[0], rtol=0, atol=1e-12)


def test_a_federation_on_demand() -> None:
    plan = {"agents": 50, "sampled": 5, "records": 4, "dim": 3, "steps": 2, "rounds": 3}
    for shared in (False, True):
        measured = run(plan | {"shared": shared})
        assert measured["round"] > 0 and measured["bytes"] >= 0 and measured["epsilon"] > 0


def test_the_list() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--list"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "sampling" in done.stdout and "flower_overhead" in done.stdout
