"""The configuration of a run: a TOML file, overrides, and everything that is wrong with them at once.

    [run]          name, rounds, sampled, seed, ...
    [problem]      name, and what its class takes
    [data]         source, and what its class takes, with all of them `precision`; [data.partition] the same by name
    [trainer]      name, and what its class takes
    [aggregation]  the same; the tangent mean where it is left out
    [privacy]      epsilon and delta of the whole run; with an epsilon, the trainer's noise is found for it
"""

from __future__ import annotations

import importlib
import math
import os
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pri_rfed.aggregation import AGGREGATIONS, Aggregation
from pri_rfed.data.agents import AgentArrays, RegisteredAgents, misfit
from pri_rfed.data.base import DataSet, Source
from pri_rfed.data.download import DataFolders
from pri_rfed.data.partitions import PARTITIONS, Partition
from pri_rfed.data.sources import SOURCES, Table
from pri_rfed.experiment.memory import Memory
from pri_rfed.experiment.options import Built, build, parameters, shown, suggestion
from pri_rfed.manifolds import MANIFOLDS, Manifold
from pri_rfed.manifolds.naming import make_manifold, origin
from pri_rfed.privacy.accountants import best_epsilon
from pri_rfed.privacy.calibration import calibrate_noise, with_options
from pri_rfed.privacy.dominance import hardest
from pri_rfed.privacy.report import Rounds, global_event
from pri_rfed.problems import PROBLEMS, Problem
from pri_rfed.randomness import Role, stream
from pri_rfed.training import TRAINERS, Trainer

SECTIONS = ("run", "problem", "data", "trainer", "aggregation", "privacy")
OTHER_COMMANDS = {"sweep": "sweep", "account": "account", "settings": "reproduce", "federation": "server"}
"""Sections that no run's configuration has, and the command that takes them."""


class ConfigError(ValueError):
    """A configuration that cannot be run; `errors` has one line for everything that is wrong."""

    def __init__(self, errors: Sequence[str]):
        self.errors = list(dict.fromkeys(errors))
        super().__init__("\n".join(self.errors))


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The section [run].

    name: for the run's folder. rounds: T. sampled: how many agents train in a round, or as a fraction which share of
    them. seed: of the whole simulation. output: the last iterate, or a uniformly drawn one. evaluate_every: after how
    many rounds diagnostics are computed; 0 for never.
    """

    name: str
    rounds: int
    sampled: int | float = 1.0
    seed: int = 0
    output: Literal["last", "uniform"] = "last"
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        wrong = []
        if not re.fullmatch(r"[\w.-]+", self.name) or self.name.startswith("."):
            wrong.append(f"name = {shown(self.name)}: must consist of letters, digits, '-', '_' and '.'")
        for key, least in (("rounds", 1), ("evaluate_every", 0), ("seed", 0)):
            if getattr(self, key) < least:
                wrong.append(f"{key} = {getattr(self, key)}: must be at least {least}")
        if isinstance(self.sampled, int) and self.sampled < 1:
            wrong.append(f"sampled = {self.sampled}: must be at least 1 agent, or a fraction such as 0.5")
        if isinstance(self.sampled, float) and not 0 < self.sampled <= 1:
            wrong.append(f"sampled = {self.sampled}: a fraction must lie in (0, 1]; a number of agents is whole")
        if self.output == "uniform" and self.rounds == 1:
            wrong.append('output = "uniform" draws from the points that rounds begin with; with one round, the start')
        if wrong:
            raise ValueError("; ".join(wrong))


@dataclass(frozen=True, kw_only=True)
class PrivacyOptions:
    """The section [privacy]: epsilon is the target for the whole run, before it, against everybody; delta goes with
    all figures."""

    epsilon: float | None = None
    delta: float = 1e-5

    def __post_init__(self) -> None:
        wrong = []
        if self.epsilon is not None and not self.epsilon > 0:
            wrong.append(f"epsilon = {self.epsilon:g}: must be more than 0")
        if not 0 < self.delta < 1:
            wrong.append(f"delta = {self.delta:g}: must be more than 0 and less than 1")
        if wrong:
            raise ValueError("; ".join(wrong))


@dataclass(frozen=True)
class Experiment:
    """A configuration ready to run."""

    run: RunOptions
    problem: Problem
    agents: AgentArrays | RegisteredAgents
    trainer: Trainer
    aggregation: Aggregation
    privacy: PrivacyOptions
    description: str
    """The data, in words."""
    resolved: dict[str, dict[str, Any]]
    """The complete configuration, with defaults and the noise that was found: loading it gives the same experiment."""

    @property
    def sampled(self) -> int:
        """How many agents train in a round."""
        share = self.run.sampled
        return share if isinstance(share, int) else max(1, round(share * len(self.agents)))


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises ConfigError if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError([f"{path}: there is no such file"]) from None
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: {error}"]) from error


def read_run(path: Path, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """The tables of a run's configuration with assignments applied, named like the file unless they say a name.

    Raises ConfigError, also for a configuration that is another command's.
    """
    tables = read_toml(path)
    for section, command in OTHER_COMMANDS.items():
        if section in tables:
            raise ConfigError([f"{path}: has a section {section}, which is for `pri-rfed {command}`, not for a run"])
    return named_like(path, override(tables, assignments))


def named_like(path: Path, tables: dict[str, Any]) -> dict[str, Any]:
    """The tables with a name for the run: where they say none, that of the file."""
    if isinstance(tables.setdefault("run", {}), dict):
        tables["run"].setdefault("name", re.sub(r"[^\w.-]+", "-", path.stem))
    return tables


def override(tables: dict[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """The tables with `key.sub=value` assignments applied: values as in TOML, a bare word is taken for a text, and an
    empty value removes the entry.

    Raises ConfigError with everything that is no assignment.
    """
    errors: list[str] = []
    tables = {key: dict(value) if isinstance(value, dict) else value for key, value in tables.items()}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        names = [name.strip() for name in key.split(".")]
        if not equals or len(names) < 2 or not all(names):
            errors.append(f"--set {assignment}: must be of the form section.key=value")
            continue
        value = _value(text.strip())
        if value is None and text.strip():
            errors.append(f"--set {assignment}: {text.strip()} is no TOML value")
            continue
        if (wrong := put(tables, names, value)) is not None:
            errors.append(f"--set {assignment}: {wrong}")
    if errors:
        raise ConfigError(errors)
    return tables


def put(tables: dict[str, Any], names: Sequence[str], value: Any) -> str | None:
    """Set the entry of these names, one below another, or for None remove it; tables inside are copied, not altered.
    Returns what is wrong, if anything is."""
    here = tables
    for name in names[:-1]:
        below = here.get(name, {})
        if not isinstance(below, dict):
            return f"{name} is no table"
        here[name] = dict(below)
        here = here[name]
    if value is None:
        here.pop(names[-1], None)
    else:
        here[names[-1]] = value
    return None


def _value(text: str) -> Any:
    """A TOML value, or a bare word as a text; None where it is neither."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text if re.fullmatch(r"[\w./-]+", text) else None


@dataclass(frozen=True)
class Population:
    """The agents of a run, as a section of its configuration says: their records, or only how many each holds."""

    agents: AgentArrays | RegisteredAgents
    record_shape: tuple[int, ...]
    description: str
    table: dict[str, Any]
    """The complete section."""
    seed: int = 0
    """What it was divided by."""


Obtain = Callable[[dict[str, Any], int, list[str]], Population | None]
"""From a section and a seed to the agents; what is wrong is added to the list."""


def load(tables: Mapping[str, Any], folders: DataFolders, memory: Memory | None = None) -> Experiment:
    """The experiment that the tables describe, its data loaded and its noise calibrated.

    memory: of other experiments that were loaded from the same folders.
    Raises ConfigError with everything that is wrong.
    """
    known = Memory(0) if memory is None else memory

    def obtain(table: dict[str, Any], seed: int, errors: list[str]) -> Population | None:
        return _obtain_data(table, folders, seed, errors, known)

    return assemble(tables, "data", obtain, known)


def check(tables: Mapping[str, Any]) -> list[str]:
    """What is wrong with the tables, as far as that can be told without any data."""
    *_, errors = _options(tables, "data")
    data, problem = tables.get("data", {}), tables.get("problem", {})
    name = problem.get("name") if isinstance(problem, dict) else None
    if isinstance(data, dict):
        source, _, wrong = _data_options(data)
        errors += wrong
        if source.value and name in PROBLEMS and (unfit := misfit(PROBLEMS[name], source.value.precision)):
            errors.append(f"data.{unfit}")
    if not (isinstance(name, str) and ":" in name):
        errors += _choose("problem", "name", PROBLEMS, problem if isinstance(problem, dict) else {})[1]
    return list(dict.fromkeys(errors))


def assemble(tables: Mapping[str, Any], place: str, obtain: Obtain, memory: Memory | None = None) -> Experiment:
    """The experiment that the tables describe, with agents that `obtain` makes of the section `place`.

    Raises ConfigError with everything that is wrong.
    """
    memory = Memory(0) if memory is None else memory
    section, run, privacy, trainer, aggregation, errors = _options(tables, place)
    calibrated = _is_calibrated(section)
    population = obtain(section[place], run.value.seed if run.value is not None else 0, errors)
    problem: Built[Problem] = Built()
    agents = None if population is None else population.agents
    if population is not None:
        problem = build_problem(section["problem"], population.record_shape)
        errors += problem.errors
    elif "name" not in section["problem"]:
        errors.append("problem.name is missing")
    if population is not None and problem.value is not None and isinstance(agents, AgentArrays):
        known, raw = problem.value, agents
        of = [problem.table, population.table, population.seed]
        try:
            agents = memory.recall("prepared", of, lambda: raw.prepared(known), _bytes_held)
        except ValueError as error:
            hint = " (data.unit and data.scale change them)" if population.table.get("scale") == "none" else ""
            errors.append(_as_option("data", str(error), population.table) + hint)
            agents = None
    if problem.value is not None and agents is not None:
        if trainer.value is not None:
            errors += _misfits(trainer.value, problem.value, agents)
        else:  # what can be said of the entries that are right is said at once, too
            told = {error.partition(":")[0].split()[0] for error in trainer.errors}
            right = {key: value for key, value in section["trainer"].items() if f"trainer.{key}" not in told}
            rest = _trainer(right, "noise" not in right)
            misfits = [] if rest.value is None else _misfits(rest.value, problem.value, agents)
            errors += [line for line in misfits if line.split()[0] not in told]
        sampled = section["run"].get("sampled", 1)
        if isinstance(sampled, int) and sampled > len(agents):
            errors.append(f"run.sampled = {sampled}: must be at most {len(agents)}, the number of agents")
    if errors:
        raise ConfigError(errors)
    assert run.value and privacy.value and trainer.value and aggregation.value and problem.value
    assert agents is not None and population is not None

    resolved = {
        "run": run.table,
        "problem": problem.table,
        place: population.table,
        "trainer": trainer.table,
        "aggregation": aggregation.table,
        "privacy": privacy.table,
    }
    experiment = Experiment(
        run.value,
        problem.value,
        agents,
        trainer.value,
        aggregation.value,
        privacy.value,
        population.description,
        resolved,
    )
    return _within_target(experiment, calibrated, memory)


def _obtain_data(
    table: dict[str, Any], folders: DataFolders, seed: int, errors: list[str], memory: Memory
) -> Population | None:
    """The data set of the section [data], divided among agents."""
    source, partition, wrong = _data_options(table)
    errors += wrong
    data = _load_data(source, folders, seed, errors, memory)
    if source.value is None or data is None or partition.value is None:
        return None
    complete = {"source": table["source"], **source.table, "partition": partition.table}
    if isinstance(source.value, Table):
        complete["path"] = str(Path(source.value.path).expanduser().resolve())
    split, precision = partition.value.split, source.value.precision

    def divide() -> AgentArrays:
        parts, names = split(data, stream(seed, Role.DATA, 1))
        return AgentArrays(map(data.take, parts), names, precision)

    try:
        agents = memory.recall("agents", [complete, seed], divide, _bytes_held)
    except ValueError as error:
        errors.append(_as_option("data.partition", str(error), partition.table))
        return None
    return Population(agents, agents[0].shape[1:], data.description, complete, seed)


def _bytes_held(agents: AgentArrays) -> int:
    return agents.nbytes


# Sections -----------------------------------------------------------------------------------------------------------


def _options(
    tables: Mapping[str, Any], place: str
) -> tuple[
    dict[str, dict[str, Any]], Built[RunOptions], Built[PrivacyOptions], Built[Trainer], Built[Aggregation], list[str]
]:
    """The sections, what they say by themselves, and what is wrong with that; the data are in the section `place`."""
    sections = [place if key == "data" else key for key in SECTIONS]
    inside = {"partition": ["data.partition"]} if place == "data" else {}
    errors = [
        f"{key}: unknown section; {suggestion(key, [*sections, *inside.get(key, [])])}"
        for key in tables
        if key not in sections
    ]
    section: dict[str, dict[str, Any]] = {}
    for key in sections:
        value = tables.get(key, {})
        if not isinstance(value, dict):
            errors.append(f"{key} = {shown(value)}: must be a table")
        section[key] = value if isinstance(value, dict) else {}

    run = build("run", RunOptions, section["run"])
    privacy = build("privacy", PrivacyOptions, section["privacy"])
    trainer = _trainer(section["trainer"], _is_calibrated(section))
    aggregation = build_named("aggregation", AGGREGATIONS, {"name": "tangent-mean"} | section["aggregation"])
    for built in (run, privacy, trainer, aggregation):
        errors += built.errors
    return section, run, privacy, trainer, aggregation, errors


def _is_calibrated(section: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the noise is to be found."""
    return section["privacy"].get("epsilon") is not None and "noise" not in section["trainer"]


def _choose(section: str, key: str, known: Mapping[str, Any], table: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """The class that a table names, or what is wrong with the name."""
    name = table.get(key)
    if name is None:
        return None, [f"{section}.{key} is missing; known are {', '.join(known)}"]
    if name not in known:
        return None, [f"{section}.{key} = {shown(name)}: unknown; {suggestion(str(name), known)}"]
    return known[name], []


def build_named(section: str, known: Mapping[str, Callable[..., Any]], table: Mapping[str, Any]) -> Built[Any]:
    """The object of the class that the table names by its key `name`."""
    cls, errors = _choose(section, "name", known, table)
    if cls is None:
        return Built(errors=errors)
    built = build(section, cls, {key: value for key, value in table.items() if key != "name"})
    built.table = {"name": table["name"], **built.table}
    return built


def _trainer(table: dict[str, Any], calibrated: bool) -> Built[Trainer]:
    """The trainer; where its noise is to be found, with a placeholder for it, in units of each agent's sensitivity."""
    cls = TRAINERS.get(str(table.get("name")))
    if calibrated and cls is not None and "noise" in parameters(cls):
        table = {"noise": 1.0, "noise_unit": "sensitivity"} | table
    return build_named("trainer", TRAINERS, table)


def _data_options(table: dict[str, Any]) -> tuple[Built[Source], Built[Partition], list[str]]:
    options = {key: value for key, value in table.items() if key not in ("source", "partition")}
    cls, errors = _choose("data", "source", SOURCES, table)
    if errors and re.search(r"[/.\\]|^(csv|npy|npz|table)$", str(table.get("source"))):
        errors = [f'data.source = {shown(table["source"])}: unknown; a file of yours is source = "file", with its path']
    source: Built[Source] = build("data", cls, options) if cls else Built()
    divided = table.get("partition")
    if not isinstance(divided, dict):
        said = "is missing" if divided is None else f"= {shown(divided)}: must be a table"
        return source, Built(), [*errors, *source.errors, f"data.partition {said}"]
    partition = build_named("data.partition", PARTITIONS, divided)
    return source, partition, [*errors, *source.errors, *partition.errors]


def _load_data(
    source: Built[Source], folders: DataFolders, seed: int, errors: list[str], memory: Memory
) -> DataSet | None:
    """The data set, if it can be had. One that is not drawn at random is the same for all seeds."""
    if source.value is None:
        return None
    load = source.value.load

    def read() -> _Loaded:
        rng = stream(seed, Role.DATA, 0)
        before = rng.bit_generator.state
        data = load(folders, rng)
        return _Loaded(data, seed if rng.bit_generator.state != before else None)

    what = [type(source.value).__name__, source.table]
    try:
        loaded = memory.recall("data", what, read, _bytes_loaded)
        if loaded.seed not in (seed, None):
            loaded = memory.recall("data", [*what, seed], read, _bytes_loaded)
        return loaded.data
    except (ValueError, OSError) as error:
        errors.append(_as_option("data", str(error), source.table))
        return None


@dataclass(frozen=True)
class _Loaded:
    """A data set. seed: that it was drawn by; None where it is none's."""

    data: DataSet
    seed: int | None


def _bytes_loaded(loaded: _Loaded) -> int:
    return loaded.data.held.nbytes


def _as_option(section: str, message: str, table: Mapping[str, Any]) -> str:
    """A message with the full name of the option that it begins with, or of the section."""
    word = re.match(r"\w+(?= =)", message)
    return f"{section}.{message}" if word and word[0] in table else f"{section}: {message}"


def _own_class(name: str) -> Callable[..., Problem] | str:
    """The user's class that 'module:Class' names, also in the current folder, or what is wrong with it."""
    module, _, attribute = name.partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # last, so that no file there stands in for an installed module
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        return f"problem.name = {shown(name)}: {error}"
    if not (isinstance(found, type) and issubclass(found, Problem)):
        return f"problem.name = {shown(name)}: is no subclass of pri_rfed.problems.Problem"
    return found


def protects(table: Mapping[str, Any]) -> str:
    """What of a record a guarantee is about, by the problem that the section [problem] names; "": all of it."""
    name = str(table.get("name"))
    found = _own_class(name) if ":" in name else PROBLEMS.get(name)
    return str(getattr(found, "protects", ""))


def build_problem(table: dict[str, Any], record_shape: tuple[int, ...]) -> Built[Problem]:
    """The problem. What follows from the records' shape is not asked for: `n`, and the size of a manifold."""
    options = {key: value for key, value in table.items() if key != "name"}
    name = table.get("name")
    if isinstance(name, str) and ":" in name:
        found = _own_class(name)
        cls, errors = (None, [found]) if isinstance(found, str) else (found, [])
    else:
        cls, errors = _choose("problem", "name", PROBLEMS, table)
    if cls is None:
        return Built(errors=errors)
    kinds = {key: kind for key, (kind, _) in parameters(cls).items()}
    given: dict[str, Any] = {}
    kept: dict[str, Any] = {"name": name}
    if "n" in kinds and "n" not in options:
        axes = getattr(cls, "record_axes", 1)
        if len(record_shape) != axes:
            what = "vectors" if axes == 1 else f"arrays with {axes} axes"
            return Built(errors=[f"problem.name = {shown(name)}: needs records that are {what}, not {record_shape}"])
        given["n"] = record_shape[-1]
    if kinds.get("manifold") is Manifold:
        if "manifold" not in options:
            return Built(errors=[f"problem.manifold is missing; known are {', '.join(MANIFOLDS)}"])
        try:
            given["manifold"] = make_manifold(str(kept.setdefault("manifold", options.pop("manifold"))), record_shape)
        except ValueError as error:
            return Built(errors=[f"problem.{error}"])
    if "center" in kinds:
        if "center" in options:
            kept["center"] = options.pop("center")
            try:
                given["center"] = np.array(kept["center"], dtype=float)
            except (ValueError, TypeError):
                return Built(errors=[f"problem.center = {shown(kept['center'])}: must be a list of numbers"])
        else:
            given["center"] = origin(given["manifold"]) if options.get("radius") is not None else None
    built = build("problem", cls, options, given)
    built.table = kept | built.table
    return built


# What depends on the data -------------------------------------------------------------------------------------------


def _misfits(trainer: Trainer, problem: Problem, agents: AgentArrays | RegisteredAgents) -> list[str]:
    """What is wrong with running this training on these agents, said once, of the agent with the fewest records."""
    said: dict[str, str] = {}
    for records in sorted(set(agents.counts.tolist())):
        for line in trainer.check(problem, records):
            said.setdefault(line.split()[0], line)
    return [f"trainer.{line}" for line in said.values()]


def _within_target(experiment: Experiment, calibrated: bool, memory: Memory) -> Experiment:
    """The experiment with the least noise for its target, or as it is if it was given its noise and keeps the target.

    Raises ConfigError if it cannot.
    """
    target, trainer = experiment.privacy, experiment.trainer
    if target.epsilon is None:
        return experiment
    counts, problem = np.unique(experiment.agents.counts).tolist(), experiment.problem
    plan = (experiment.sampled, len(experiment.agents), experiment.run.rounds)
    if calibrated and hasattr(trainer, "noise"):

        def find() -> float:
            assert target.epsilon is not None
            found: Any = calibrate_noise(trainer, problem, counts, *plan, target.epsilon, target.delta)
            return float(found.noise)

        # What is released with the noise that stands for the one to be found tells all that matters of the problem.
        released = {n: trainer.event(problem, n).to_dict() for n in counts}
        of = [*(experiment.resolved[key] for key in ("trainer", "privacy")), released, *plan]
        try:
            noise = memory.recall("noise", of, find)
        except ValueError as error:
            raise ConfigError([f"privacy.epsilon: {error}"]) from error
        trainer = with_options(trainer, noise=noise)
        resolved = experiment.resolved | {"trainer": experiment.resolved["trainer"] | {"noise": noise}}
        return replace(experiment, trainer=trainer, resolved=resolved)
    rounds = [Rounds(*plan)]
    events = hardest(trainer.event(experiment.problem, n) for n in counts)
    epsilon = max(best_epsilon(global_event(event, rounds), target.delta).epsilon for event in events)
    if epsilon > target.epsilon:
        what = "is not private" if math.isinf(epsilon) else f"spends {epsilon:.6g}"
        raise ConfigError([f"privacy.epsilon = {target.epsilon:g}: the trainer {trainer.name} as configured {what}"])
    return experiment
