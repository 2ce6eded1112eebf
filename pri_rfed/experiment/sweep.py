"""Sweeps: one configuration of a run, varied. What a sweep is, the points that it consists of, and its folder.

A sweep's configuration is a TOML file:

    base = "../quickstart.toml"                # a run's configuration, relative to this file;

    [trainer]                                  # or its sections themselves, or both: these entries stand above the base
    step_size = 0.05

    [sweep]
    name = "agents"                            # default: the name of the file
    seeds = 5                                  # run.seed, run.seed + 1, ..., 5 of them; or a list of seeds

    [sweep.grid]                               # every combination
    "data.partition.agents" = [5, 10, 20]
    "privacy.epsilon" = [0.5, 1, 2]

    [sweep.zip]                                # the first of each, the second of each, ...; [[sweep.zip]] for several
    "trainer.steps" = [1, 5, 25]
    "run.rounds" = [50, 10, 2]

    [sweep.random]                             # so many draws of all of these together
    number = 20
    seed = 0
    "trainer.step_size" = { log = [0.01, 0.3] }
    "run.sampled" = { linear = [1, 10] }       # whole numbers where both ends are whole
    "trainer.output" = { choice = ["last", "geodesic-average"] }

The points are all combinations of a point of the grid, a row of each zip, a draw, and a seed; the same point twice is
one point.

The folder of a sweep:

    sweep.toml        the sweep, complete: `base` put in
    versions.json     versions of Python and of the libraries
    points.jsonl      one line a point that was computed, appended as they get ready (in any order): its row of the
                      table, and its rounds. A line that was cut off when the process died is left out
    table.parquet     the table: one row a point, in the order of the points; also table.csv. Written at the end, and
                      when a sweep is interrupted
    rounds.parquet    the curves: one row for every round of every point that was evaluated
    summary.json      counts, seconds, the pictures drawn and why others were not; at the end: its presence says that
                      the sweep is finished
    *.png, *.svg      pictures

Columns of the table, in this order:

    point             its number, from 0
    what varies       by the full names of the keys, such as "data.partition.agents"
    seed
    status            "done", "failed" (then `error` says why and there are no figures), "missing" (not computed yet)
    agents sampled rate rounds          N, s, s/N, T
    records records_per_agent           of all agents, and n of the one with the fewest
    batch steps noise noise_unit        b of that agent, K (none where the trainer has no such number), sigma
    step_size                           the first one
    delta epsilon_target                as asked for
    private           whether there is a guarantee; without one both epsilons are infinite
    epsilon_global epsilon_ledger_max   the guarantees: before the run, and after it, both at delta
    epsilon_theorem_4_2                 what Theorem 4.2 of the PriRFed paper claims: NOT a guarantee
    cost excess_risk gradient_norm distance      of the output; diagnostics, not private
    gradient_calls    per-record gradients evaluated by all agents in all rounds
    bytes_up bytes_down                 what agents send and receive in all rounds (see `pri_rfed.wire.exchange_sizes`)
    refused           uploads that the server did not use
    seconds           of training and aggregation
    point_seconds     of all that the point took: data, noise, rounds, diagnostics, accounting
    error
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from pri_rfed.experiment.config import SECTIONS, ConfigError, override, put, read_toml
from pri_rfed.experiment.folder import append_line, mend_lines, read_lines, to_json, versions
from pri_rfed.experiment.options import build, shown, suggestion
from pri_rfed.files import write_atomically

RANGES = ("linear", "log", "choice")
MOST_POINTS = 100_000
"""A sweep of more points is taken for a mistake: they are all held in memory."""
DIGITS = 4
"""Drawn numbers are rounded to so many significant digits, so that they can be read and typed again."""
ALIKE = 2
"""Epsilons that agree in so many digits are taken for one: noise is found to 0.1 %, from below."""

FACTS = {
    "agents": int, "sampled": int, "rate": float, "rounds": int, "records": int, "records_per_agent": int,
    "batch": int, "steps": int, "noise": float, "noise_unit": str, "step_size": float, "delta": float,
    "epsilon_target": float,
}  # fmt: skip
RESULTS = {
    "private": bool, "epsilon_global": float, "epsilon_ledger_max": float, "epsilon_theorem_4_2": float, "cost": float,
    "excess_risk": float, "gradient_norm": float, "distance": float, "gradient_calls": int, "bytes_up": int,
    "bytes_down": int, "refused": int, "seconds": float, "point_seconds": float,
}  # fmt: skip
CURVES = {"cost": float, "excess_risk": float, "gradient_norm": float, "distance": float}
INFINITE_WITHOUT_PRIVACY = ("epsilon_global", "epsilon_ledger_max", "epsilon_theorem_4_2")

Row = dict[str, Any]


# What a sweep is ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The section [sweep], as written."""

    name: str | None = None
    seeds: int | tuple[int, ...] = 1
    grid: dict[str, Any] = field(default_factory=dict)
    zip: dict[str, Any] | tuple[dict[str, Any], ...] = ()
    random: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wrong = []
        if self.name is not None and not re.fullmatch(r"\w[\w.-]*", self.name):
            wrong.append(f"name = {shown(self.name)}: must consist of letters, digits, '-', '_' and '.'")
        seeds = [] if isinstance(self.seeds, int) else list(self.seeds)
        if isinstance(self.seeds, int) and self.seeds < 1:
            wrong.append(f"seeds = {self.seeds}: must be at least 1, or a list of seeds")
        if not isinstance(self.seeds, int) and (not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds)):
            wrong.append(f"seeds = {shown(seeds)}: must be different whole numbers >= 0, one at least")
        if wrong:
            raise ValueError("; ".join(wrong))


@dataclass(frozen=True)
class Point:
    """One run of a sweep. index: its number. values: what varies, by the full name of the key. tables: the complete
    configuration of the run, which `pri-rfed run` would take."""

    index: int
    values: dict[str, Any]
    seed: int
    tables: dict[str, Any]

    @property
    def key(self) -> str:
        """What tells the point from all others of the sweep."""
        return json.dumps({**self.values, "run.seed": self.seed}, sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True)
class Sweep:
    """A base configuration and the points that vary it. tables: the sweep's whole configuration."""

    name: str
    tables: dict[str, Any]
    varied: tuple[str, ...]
    points: tuple[Point, ...]

    @property
    def base(self) -> dict[str, Any]:
        """The sections that all points share."""
        return {key: value for key, value in self.tables.items() if key != "sweep"}


def read_sweep(path: Path) -> Sweep:
    """The sweep that the file describes. Raises ConfigError with everything that is wrong with its shape: what is wrong
    with single points is for `pri_rfed.experiment.config.check` to say."""
    return parse(read_toml(path), path.parent, path.stem)


def parse(tables: dict[str, Any], folder: Path, name: str, assignments: Sequence[str] = ()) -> Sweep:
    """The sweep that the tables describe. folder: what `base` is relative to. name: where [sweep] gives none.
    assignments: to entries of the tables, as `override` takes them; those that remove one remove it from the base, too.
    """
    tables = override(tables, assignments)
    errors: list[str] = []
    sections: dict[str, Any] = {}
    if (base := tables.get("base")) is not None:
        if isinstance(base, str):
            try:
                sections = read_toml(folder / base)
            except ConfigError as error:
                errors += [f"base = {shown(base)}: {line}" for line in error.errors]
        else:
            errors.append(f"base = {shown(base)}: must be the path of a run's configuration")
    if isinstance(tables.get("sweep"), dict):
        table = tables["sweep"]
    else:
        table = {}
        errors.append("sweep is missing: a table that says what varies; `pri-rfed run` runs a configuration as it is")
    given = {key: value for key, value in tables.items() if key not in ("base", "sweep")}
    known = (*SECTIONS, "base", "sweep")
    errors += [f"{key}: unknown section; {suggestion(key, known)}" for key in given if key not in SECTIONS]
    removals = [each for each in assignments if each.rstrip().endswith("=") and not each.strip().startswith("sweep.")]
    sections = override(_merged(sections, given), removals)
    built = build("sweep", SweepOptions, table)
    errors += built.errors
    options = built.value or SweepOptions()

    name = options.name or re.sub(r"[^\w.-]+", "-", name)
    zips = [options.zip] if isinstance(options.zip, dict) else list(options.zip)
    if (number := _number(options, zips)) > MOST_POINTS:
        raise ConfigError([*errors, f"sweep: {number} points are too many; at most {MOST_POINTS} can be computed"])

    run = sections.setdefault("run", {})
    seed = 0
    if isinstance(run, dict):
        run.setdefault("name", name)
        seed = run["seed"] if isinstance(run.get("seed"), int) else 0
    seeds = [seed + i for i in range(options.seeds)] if isinstance(options.seeds, int) else list(options.seeds)

    axes = [_grid(_leaves(options.grid), errors)]
    axes += [_zip(_leaves(part), errors) for part in zips]
    axes.append(_draws(options.random, errors))
    varied = [key for part in (options.grid, *zips, _without_options(options.random)) for key in _leaves(part)]
    for key in dict.fromkeys(varied):
        if varied.count(key) > 1:
            errors.append(f"sweep: {key} varies in two places; once is enough")
        if key == "run.seed":
            errors.append("sweep: run.seed varies by `seeds` in [sweep], not as a key")
        if "." not in key or key.partition(".")[0] not in SECTIONS:
            section = key.partition(".")[0]
            said = "must be the full name of an entry" if section in SECTIONS else suggestion(section, SECTIONS)
            errors.append(f"sweep: {key}: no such key; {said}")
    if errors:
        raise ConfigError(errors)

    random: dict[str, Any] = {key: options.random[key] for key in ("number", "seed") if key in options.random}
    written: dict[str, Any] = {
        "name": name,
        "seeds": seeds,
        "grid": _leaves(options.grid),
        "zip": [_leaves(part) for part in zips],
        "random": random | _leaves(_without_options(options.random)),
    }
    complete = {**sections, "sweep": {key: value for key, value in written.items() if value}}
    points: dict[str, Point] = {}
    for parts in itertools.product(*axes):
        values = {key: value for part in parts for key, value in part.items()}
        for seed in seeds:
            point = Point(len(points), values, seed, _with(sections, {**values, "run.seed": seed}, errors))
            points.setdefault(point.key, point)
    if errors:
        raise ConfigError(errors)
    return Sweep(name, complete, tuple(varied), tuple(points.values()))


def _number(options: SweepOptions, zips: Sequence[Mapping[str, Any]]) -> int:
    """How many points there are, counted without making them; what is no list or number yet counts once."""
    grid, *rows = [
        [len(values) for values in _leaves(part).values() if isinstance(values, (list, tuple))]
        for part in (options.grid, *zips)
    ]
    draws = options.random.get("number")
    seeds = options.seeds if isinstance(options.seeds, int) else len(options.seeds)
    return math.prod([*grid, *(max(row, default=1) for row in rows), draws if type(draws) is int else 1, seeds])


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables, entry by entry; what is above counts. A section that names another class starts from nothing."""
    out = dict(below)
    for key, value in above.items():
        old = out.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            another = any(name in value and value[name] != old.get(name) for name in ("name", "source"))
            out[key] = dict(value) if another and key != "run" else _merged(old, value)
        else:
            out[key] = value
    return out


def _leaves(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a table by their full names: {"a": {"b": [1]}} and {"a.b": [1]} say the same."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        inside = isinstance(value, Mapping) and not set(value) & set(RANGES)
        out |= _leaves(value, f"{prefix}{key}.") if inside else {f"{prefix}{key}": value}
    return out


def _lists(place: str, leaves: Mapping[str, Any], errors: list[str]) -> dict[str, list[Any]]:
    good = {}
    for key, values in leaves.items():
        if isinstance(values, (list, tuple)) and values:
            good[key] = list(values)
        else:
            errors.append(f"sweep.{place}: {key} = {shown(values)}: must be a list of values, one at least")
    return good


def _grid(leaves: Mapping[str, Any], errors: list[str]) -> list[Row]:
    lists = _lists("grid", leaves, errors)
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def _zip(leaves: Mapping[str, Any], errors: list[str]) -> list[Row]:
    lists = _lists("zip", leaves, errors)
    lengths = {key: len(values) for key, values in lists.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{key} has {length}" for key, length in lengths.items())
        errors.append(f"sweep.zip: all lists must be equally long; {said}")
        return [{}]
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)] or [{}]


def _without_options(random: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in random.items() if key not in ("number", "seed")}


def _draws(random: Mapping[str, Any], errors: list[str]) -> list[Row]:
    ranges = _leaves(_without_options(random))
    if not random:
        return [{}]
    number, seed = random.get("number"), random.get("seed", 0)
    for name, value, least in (("number", number, 1), ("seed", seed, 0)):
        if type(value) is not int or value < least:
            errors.append(f"sweep.random.{name} = {shown(value)}: must be a whole number >= {least}")
    if not ranges:
        errors.append('sweep.random: it draws nothing; say what, such as "privacy.epsilon" = { log = [0.1, 10] }')
    good = {key: value for key, value in ranges.items() if _is_range(key, value, errors)}
    if len(good) < len(ranges) or type(number) is not int or type(seed) is not int or seed < 0:
        return [{}]
    rng = np.random.Generator(np.random.PCG64DXSM(seed))
    return [{key: _draw(value, rng) for key, value in good.items()} for _ in range(number)]


def _is_range(key: str, value: Any, errors: list[str]) -> bool:
    """Whether a value is { linear = [a, b] }, { log = [a, b] } or { choice = [...] }; what is wrong is added."""
    place = f"sweep.random: {key} = {shown(value)}"
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in RANGES:
        errors.append(f"{place}: must be one of {{ linear = [a, b] }}, {{ log = [a, b] }}, {{ choice = [...] }}")
        return False
    kind, ends = next(iter(value.items()))
    if kind == "choice":
        if not isinstance(ends, list) or not ends:
            errors.append(f"{place}: choice must be a list of values, one at least")
            return False
        return True
    if (
        not isinstance(ends, list)
        or len(ends) != 2
        or not all(type(end) in (int, float) and math.isfinite(end) for end in ends)
        or not ends[0] < ends[1]
        or (kind == "log" and not ends[0] > 0)
    ):
        positive = " > 0" if kind == "log" else ""
        errors.append(f"{place}: {kind} must be two numbers{positive}, the smaller one first")
        return False
    return True


def _draw(drawn_from: Mapping[str, list[Any]], rng: np.random.Generator) -> Any:
    kind, ends = next(iter(drawn_from.items()))
    if kind == "choice":
        return ends[int(rng.integers(len(ends)))]
    whole = all(type(end) is int for end in ends)
    if whole and kind == "linear":
        return int(rng.integers(ends[0], ends[1] + 1))
    low, high = ends
    drawn = rng.uniform(low, high) if kind == "linear" else math.exp(rng.uniform(math.log(low), math.log(high)))
    return round(drawn) if whole else float(f"{drawn:.{DIGITS}g}")


def _with(sections: Mapping[str, Any], values: Mapping[str, Any], errors: list[str]) -> dict[str, Any]:
    """The sections with these entries set."""
    tables = dict(sections)
    for key, value in values.items():
        if (wrong := put(tables, key.split("."), value)) is not None:
            errors.append(f"sweep: {key}: {wrong}")
    return tables


# The folder ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """What varies, but for the seed: all seeds together. values: of the keys that vary. rows: of the table, those that
    are done."""

    values: Mapping[str, Any]
    rows: Sequence[Row]

    def all(self, column: str) -> NDArray[np.float64]:
        """The values of a column, where it has one."""
        return np.array([row[column] for row in self.rows if row[column] is not None], dtype=float)

    def median(self, column: str) -> float:
        """Over the seeds; NaN where no seed has a value."""
        values = self.all(column)
        return float(np.median(values)) if len(values) else math.nan

    def quartiles(self, column: str) -> tuple[float, float]:
        """The lower and the upper one, over the seeds that have a value."""
        low, high = np.quantile(self.all(column), [0.25, 0.75])
        return float(low), float(high)


def rounded(value: float, digits: int) -> float:
    """To so many significant digits."""
    return float(f"{value:.{digits}g}")


def pareto_front(settings: Sequence[Setting], risk: Callable[[Setting], float]) -> list[Setting]:
    """Those that no other betters in both epsilon and risk, by ascending epsilon."""
    front: list[Setting] = []
    for setting in sorted(settings, key=lambda s: (rounded(s.median("epsilon_global"), ALIKE), risk(s))):
        if not front or risk(setting) < risk(front[-1]):
            front.append(setting)
    return front


@dataclass(frozen=True)
class SweepFolder:
    """A sweep's folder; make one with `prepare`, read one, finished or not, with `open`.

    Reading is cheap enough to be repeated while a sweep goes on: make a new object to see what has come since.
    """

    path: Path
    sweep: Sweep

    @classmethod
    def prepare(cls, sweep: Sweep, path: Path) -> SweepFolder:
        """A folder to compute the sweep in: a new one, or one that holds a part of the same sweep already.

        Raises ConfigError if the folder holds anything else.
        """
        file = path / "sweep.toml"
        if file.is_file():
            there = read_sweep(file)
            if there.tables != sweep.tables or [p.key for p in there.points] != [p.key for p in sweep.points]:
                raise ConfigError(
                    [f"{path} holds another sweep (see {file}); choose another --out, or remove the folder"]
                )
        else:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise ConfigError([f"{path} is not empty, and holds no sweep; choose another --out"])
            write_atomically(path / "versions.json", to_json(versions()).encode())
            write_atomically(file, tomli_w.dumps(sweep.tables).encode())
        folder = cls(path, sweep)
        mend_lines(folder._file)
        return folder

    @classmethod
    def open(cls, path: Path) -> SweepFolder:
        """The folder of a sweep that was started. Raises ValueError if it is none."""
        file = path / "sweep.toml"
        if not file.is_file():
            raise ValueError(f"{path} is no folder of a sweep: it holds no sweep.toml")
        return cls(path, read_sweep(file))

    @property
    def config(self) -> dict[str, Any]:
        """The sweep's whole configuration, as in sweep.toml."""
        return self.sweep.tables

    @property
    def points(self) -> tuple[Point, ...]:
        return self.sweep.points

    @property
    def varied(self) -> tuple[str, ...]:
        """The full names of the keys that vary, in the order of the configuration; the seed is not among them."""
        return self.sweep.varied

    @property
    def summary(self) -> dict[str, Any] | None:
        """The counts at the end; None while the sweep is unfinished."""
        file = self.path / "summary.json"
        if not file.is_file():
            return None
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return content

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").is_file()

    def append(self, point: Point, row: Mapping[str, Any], rounds: Mapping[str, Sequence[Any]]) -> None:
        """Keep what came of a point: status, error and figures, and its curves by round."""
        append_line(self._file, {"key": point.key, "row": row, "rounds": rounds})

    @cached_property
    def computed(self) -> dict[str, dict[str, Any]]:
        """What was appended, {"row": ..., "rounds": ...} by the points' keys."""
        return {line["key"]: line for line in read_lines(self._file)}

    def table(self) -> list[Row]:
        """One row a point, in the order of the points, with the columns that the head of this module names; None where
        there is no figure. Those that are not computed yet have the status "missing"."""
        rows = []
        for point in self.points:
            found = self.computed.get(point.key, {"row": {"status": "missing"}})["row"]
            row = {"point": point.index, **point.values, "seed": point.seed, "status": found["status"]}
            row |= {name: found.get(name) for name in (*FACTS, *RESULTS, "error")}
            if row["private"] is False:
                row |= dict.fromkeys(INFINITE_WITHOUT_PRIVACY, math.inf)
            rows.append(row)
        return rows

    def settings(self) -> list[Setting]:
        """Those of which a point is done, in the order of the sweep."""
        groups: dict[str, list[Row]] = {}
        for row in self.table():
            if row["status"] == "done":
                groups.setdefault(repr([row[key] for key in self.varied]), []).append(row)
        return [Setting({key: group[0][key] for key in self.varied}, group) for group in groups.values()]

    def rounds(self) -> dict[int, dict[str, list[Any]]]:
        """The curves of every point that is done, by its number: {"round": [...], "excess_risk": [...], ...}, at those
        rounds that were evaluated."""
        found = {point.index: self.computed.get(point.key, {}).get("rounds") for point in self.points}
        return {index: rounds for index, rounds in found.items() if rounds}

    def write_table(self) -> None:
        """Write the table and the curves, as Parquet, and the table as CSV too."""
        import pyarrow as pa
        import pyarrow.csv
        import pyarrow.parquet

        table = self._arrow_table()
        curves = pa.table(
            {
                name: pa.array(
                    [value for index, rounds in self.rounds().items() for value in _column(name, index, rounds)],
                    _arrow_type(kind),
                )
                for name, kind in ({"point": int, "round": int} | CURVES).items()
            }
        )
        for name, content in (("table", table), ("rounds", curves)):
            buffer = pa.BufferOutputStream()
            pyarrow.parquet.write_table(content, buffer)
            write_atomically(self.path / f"{name}.parquet", buffer.getvalue().to_pybytes())
        buffer = pa.BufferOutputStream()
        pyarrow.csv.write_csv(table, buffer)
        write_atomically(self.path / "table.csv", buffer.getvalue().to_pybytes())

    def _arrow_table(self) -> Any:
        import pyarrow as pa

        rows = self.table()
        known = {"point": int, "seed": int, "status": str, **FACTS, **RESULTS, "error": str}
        columns = {}
        for name in rows[0]:
            values = [row[name] for row in rows]
            if name in known:
                columns[name] = pa.array(values, _arrow_type(known[name]))
                continue
            try:
                columns[name] = pa.array(values)
            except (pa.ArrowInvalid, pa.ArrowTypeError):  # a key that is a number here and a text there
                columns[name] = pa.array([value if isinstance(value, str) else json.dumps(value) for value in values])
        return pa.table(columns)

    @property
    def _file(self) -> Path:
        return self.path / "points.jsonl"


def _column(name: str, index: int, rounds: Mapping[str, list[Any]]) -> Iterator[Any]:
    length = len(rounds["round"])
    yield from itertools.repeat(index, length) if name == "point" else rounds.get(name, [None] * length)


def _arrow_type(kind: type) -> Any:
    import pyarrow as pa

    return {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}[kind]
