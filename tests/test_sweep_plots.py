"""Pictures of sweeps: which there are, what they show, and that they can be read."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from pri_rfed.experiment import sweep_plots
from pri_rfed.experiment.plots import LOOKS, Picture, drawing, plot_run
from pri_rfed.experiment.sweep import SweepFolder, parse
from pri_rfed.experiment.sweep_plots import plot_sweep

BASE: dict[str, Any] = {
    "run": {"rounds": 20, "sampled": 2}, "data": {"partition": {"agents": 4}}, "trainer": {"steps": 5},
    "privacy": {"epsilon": 2.0},
}  # fmt: skip


def made_up(folder: Path, sweep: Mapping[str, Any], curves: bool = True, **without: None) -> SweepFolder:
    """The folder of a sweep none of whose points was ever run: the risk falls with epsilon, and grows with N."""
    described = parse(BASE | {"sweep": dict(sweep)}, Path(), "made-up")
    made = SweepFolder.prepare(described, folder)
    for point in made.points:
        n, t = point.tables["data"]["partition"]["agents"], point.tables["run"]["rounds"]
        sampled, steps = point.tables["run"]["sampled"], point.tables["trainer"]["steps"]
        s = sampled if isinstance(sampled, int) else max(1, round(sampled * n))
        if s > n:
            made.append(point, {"status": "failed", "error": "too few"}, {})
            continue
        epsilon = point.tables["privacy"]["epsilon"]
        risk = n / epsilon**2 / (1 + s / n) * (1 + 0.1 * point.seed) / 100
        row = {"status": "done", "agents": n, "sampled": s, "rate": s / n, "rounds": t, "steps": steps, "delta": 1e-5,
               "private": True, "epsilon_target": epsilon, "epsilon_global": epsilon * (1 - 1e-4 * n), "cost": risk - 1,
               "excess_risk": risk} | without  # fmt: skip
        by_round = [risk * (1 + 10 * math.exp(-i)) for i in range(t)]
        made.append(point, row, {"round": list(range(1, t + 1)), "excess_risk": by_round} if curves else {})
    return SweepFolder.open(folder)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """What the pictures that are drawn consist of, by their names."""
    return watch(monkeypatch)


def watch(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    pictures: dict[str, dict[str, Any]] = {}

    @contextmanager
    def watched(path: Path, size: tuple[float, float]) -> Iterator[Picture]:
        with drawing(path, size) as picture:
            yield picture
            if picture.wanted:
                pictures[path.name] = described(picture)

    monkeypatch.setattr(sweep_plots, "drawing", watched)
    return pictures


def described(picture: Picture) -> dict[str, Any]:
    figure = picture.figure
    FigureCanvasAgg(figure).draw()
    axes = figure.axes[0]
    legends = [*figure.legends, *filter(None, [axes.get_legend()])]
    width, height = figure.get_size_inches() * figure.dpi
    texts = {axes.xaxis.label, axes.yaxis.label, axes._left_title, figure.axes[-1].yaxis.label}
    extents = [text.get_window_extent() for text in texts if text.get_text()]
    extents += [legend.get_window_extent() for legend in legends]
    return {
        "x": axes.get_xlabel(), "y": axes.get_ylabel(), "title": axes.get_title(loc="left"),
        "scales": (axes.get_xscale(), axes.get_yscale()), "ticks": [tick.get_text() for tick in axes.get_xticklabels()],
        "legend": [text.get_text() for legend in legends for text in legend.get_texts()],
        "lines": {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in axes.lines},
        "containers": [c.lines[0].get_xydata().tolist() for c in axes.containers],
        "cells": [c.get_array() for c in axes.collections if c.get_array() is not None],
        "inside": all(min(e.x0, e.y0) >= -1 and e.x1 <= width + 1 and e.y1 <= height + 1 for e in extents),
        "apart": not any(a.overlaps(b) for a, b in itertools.combinations(extents, 2)),
    }  # fmt: skip


GRID = {"data.partition.agents": [4, 8, 16], "run.sampled": [0.25, 0.5, 1.0], "privacy.epsilon": [1, 2, 4]}


Drawn = tuple[SweepFolder, list[str], dict[str, str], dict[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Drawn:
    """The pictures of a full grid."""
    folder = made_up(tmp_path_factory.mktemp("full") / "sweep", {"grid": GRID, "seeds": [0, 1, 2]})
    with pytest.MonkeyPatch.context() as monkeypatch:
        seen = watch(monkeypatch)
        return folder, *plot_sweep(folder), seen


def test_a_full_grid_has_all_pictures(full: Drawn) -> None:
    folder, files, left_out, seen = full
    names = {"risk_by_epsilon_and_agents", "risk_by_epsilon_and_sampled", "risk_over_agents_and_rate", "pareto",
             "convergence", "risk_by_data_partition_agents", "risk_by_run_sampled"}  # fmt: skip
    assert left_out == {} and set(files) == {f"{name}.{suffix}" for name in names for suffix in ("png", "svg")}
    for file in files:
        head = (folder.path / file).read_bytes()[:100]
        assert head.startswith(b"\x89PNG") if file.endswith("png") else b"<?xml" in head
    for name, picture in seen.items():
        assert picture["x"] and picture["y"] and picture["title"].startswith("made-up"), name
        assert picture["inside"] and picture["apart"], name
        if name != "risk_over_agents_and_rate":
            assert "excess risk" in picture["y"] and "not private" in picture["y"]
            assert "over 3 seeds" in picture["y"] and picture["scales"][1] == "log", name
    for name in ("risk_by_epsilon_and_agents", "risk_by_epsilon_and_sampled", "pareto"):
        assert seen[name]["x"] == "ε before the run at δ = 1e-05" and seen[name]["scales"][0] == "log"
        assert seen[name]["ticks"] == ["1", "2", "4"]
    assert seen["risk_by_epsilon_and_agents"]["legend"] == ["N = 4", "N = 8", "N = 16"]
    assert seen["risk_by_run_sampled"]["legend"] == ["ε = 1", "ε = 2", "ε = 4"]
    assert seen["risk_by_run_sampled"]["x"] == "sampling rate s/N"
    assert seen["risk_by_run_sampled"]["title"] == "made-up; the best over N"
    assert seen["convergence"]["x"] == "round t" and seen["convergence"]["title"] == "made-up; 5 of 27 settings"
    assert seen["convergence"]["legend"][0] == "N = 4, s/N = 0.25, ε = 1"


def test_what_pictures_show(full: Drawn) -> None:
    seen = full[-1]

    def risk(n: int, rate: float, epsilon: float) -> float:  # of the middle seed
        return n / epsilon**2 / (1 + rate) * 1.1 / 100

    line = seen["risk_by_epsilon_and_agents"]["containers"][2]
    assert line == [[e * (1 - 1e-4 * 16), pytest.approx(risk(16, 1.0, e))] for e in (1, 2, 4)], "the best rate"
    (cells,) = seen["risk_over_agents_and_rate"]["cells"]
    expected = [[risk(n, rate, 2) for n in (4, 8, 16)] for rate in (0.25, 0.5, 1.0)]
    np.testing.assert_allclose(cells.reshape(3, 3), expected)
    assert "ε = 2" in seen["risk_over_agents_and_rate"]["title"]
    front = seen["pareto"]["lines"]["no other is better in both"]
    assert [y for _, y in front] == [pytest.approx(risk(4, 1.0, e)) for e in (1, 2, 4)]


def test_series_differ_in_more_than_colour() -> None:
    for one, other in itertools.combinations(LOOKS, 2):
        assert one["color"] != other["color"] and one["marker"] != other["marker"]
    assert len({str(look["linestyle"]) for look in LOOKS}) >= len(LOOKS) - 1


@pytest.mark.parametrize(
    ("sweep", "reasons"),
    [
        (
            {"grid": {"trainer.steps": [1, 2]}, "seeds": 3},
            {
                "risk_by_epsilon_and_agents": "ε takes one value only; let privacy.epsilon or trainer.noise vary",
                "risk_by_epsilon_and_sampled": "ε takes one value only; let privacy.epsilon or trainer.noise vary",
                "risk_over_agents_and_rate": "it needs several values of both N and s/N",
                "pareto": "it needs three settings with a guarantee, and several values of ε",
            },
        ),
        (
            {"grid": {"privacy.epsilon": [1, 2, 4]}, "seeds": 2},
            {
                "risk_by_epsilon_and_agents": "N takes one value only",
                "risk_by_epsilon_and_sampled": "s takes one value only",
                "risk_over_agents_and_rate": "it needs several values of both N and s/N",
                "convergence": "it needs 3 seeds, and diagnostics of more than one round",
            },
        ),
        (
            {"random": {"number": 60, "data.partition.agents": {"linear": [3, 40]}, "run.sampled": {"linear": [1, 3]}},
             "grid": {"privacy.epsilon": [1, 2]}},
            {
                "risk_by_epsilon_and_agents": " values of N are too many lines",
                "risk_over_agents_and_rate": " are too many cells; sweep a grid",
                "convergence": "it needs 3 seeds, and diagnostics of more than one round",
            },
        ),
    ],
)  # fmt: skip
def test_pictures_that_say_nothing_are_left_out(
    tmp_path: Path, seen: dict[str, dict[str, Any]], sweep: dict[str, Any], reasons: dict[str, str]
) -> None:
    files, left_out = plot_sweep(made_up(tmp_path / "sweep", sweep))
    assert left_out.keys() == reasons.keys()
    for name, reason in reasons.items():
        assert left_out[name].endswith(reason)
        assert f"{name}.png" not in files and not (tmp_path / "sweep" / f"{name}.png").exists()
    assert all(picture["inside"] and picture["apart"] for picture in seen.values())


def test_keys_that_go_together_are_one_axis(tmp_path: Path, seen: dict[str, dict[str, Any]]) -> None:
    sweep = {"zip": {"trainer.steps": [1, 5, 25], "run.rounds": [50, 10, 2]}, "seeds": 3}
    files, _ = plot_sweep(made_up(tmp_path / "sweep", sweep))
    assert "risk_by_trainer_steps.png" in files and "risk_by_run_rounds.png" not in files
    assert seen["risk_by_trainer_steps"]["x"] == "local steps in a round K (and T with it)"
    assert seen["risk_by_trainer_steps"]["title"] == "made-up"
    assert seen["risk_by_trainer_steps"]["ticks"] == ["1", "5", "25"]


def test_where_no_optimum_is_known_the_cost_is_drawn(tmp_path: Path, seen: dict[str, dict[str, Any]]) -> None:
    plot_sweep(made_up(tmp_path / "sweep", {"grid": {"privacy.epsilon": [1, 2, 4]}}, curves=False, excess_risk=None))
    assert seen["pareto"]["y"] == "cost $F(w)$\n(not private)" and seen["pareto"]["scales"][1] == "linear"


def test_a_sweep_of_failures_has_no_pictures(tmp_path: Path) -> None:
    folder = made_up(tmp_path / "sweep", {"grid": {"run.sampled": [5, 6]}})
    assert plot_sweep(folder)[0] == [] and {row["status"] for row in folder.table()} == {"failed"}


def test_pictures_of_an_earlier_call_that_no_longer_hold_are_removed(tmp_path: Path) -> None:
    folder = made_up(tmp_path / "sweep", {"grid": {"privacy.epsilon": [1, 2, 4]}, "seeds": 3})
    assert "pareto.png" in plot_sweep(folder)[0]
    lines = (folder.path / "points.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if '"privacy.epsilon": 1,' in json.loads(line)["key"]]
    (folder.path / "points.jsonl").write_text("".join(kept))
    assert "pareto" in plot_sweep(SweepFolder.open(folder.path))[1]
    assert not (folder.path / "pareto.png").exists()


def test_the_ledgers_of_a_run(tmp_path: Path) -> None:
    privacy = {"delta": 1e-5, "global": [(1, 0.5), (2, 0.9)], "ledger": [(1, 0.6), (2, 1.0)]}
    files = plot_run(tmp_path, "a run", [], privacy, [0.6, 1.0, 0.0])
    assert files == ["ledgers.png", "ledgers.svg", "epsilon.png", "epsilon.svg"]
    (tmp_path / "without").mkdir()
    assert plot_run(tmp_path / "without", "a run", [], privacy | {"global": [], "ledger": []}) == []
