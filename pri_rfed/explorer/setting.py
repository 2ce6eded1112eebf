"""What is chosen on the page, the configuration it is chosen for, and the plan and the configuration that follow."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import tomli_w

from pri_rfed.data.download import DataFolders
from pri_rfed.data.partitions import PARTITIONS
from pri_rfed.data.sources import SOURCES
from pri_rfed.experiment.config import ConfigError, read_run, read_toml
from pri_rfed.experiment.folder import RunFolder
from pri_rfed.experiment.options import build, parameters
from pri_rfed.manifolds import Euclidean
from pri_rfed.privacy.planning import Plan, steps_field
from pri_rfed.problems import FrechetMean
from pri_rfed.randomness import Role, stream
from pri_rfed.training import TRAINERS, Trainer

LARGEST = {"agents": 10_000, "sampled": 10_000, "rounds": 10_000, "records": 1_000_000, "batch": 1_000_000,
           "steps": 10_000}  # fmt: skip
"""Above these the page would not answer in a moment."""

SYNTHETIC: dict[str, dict[str, Any]] = {
    "run": {"name": "explored", "rounds": 20, "sampled": 10},
    "problem": {"name": "principal-eigenvector"},
    "data": {
        "source": "synthetic-pca",
        "records": 8000,
        "dimension": 20,
        "gap": 0.3,
        "scale": "unit",
        "partition": {"name": "iid", "agents": 20},
    },
    "trainer": {"name": "dp-rsgd", "steps": 5, "batch": "full", "step_size": 0.2},
    "privacy": {"epsilon": 2.0, "delta": 1e-5},
}
"""What is explored without a run: records enough for any number of agents, of a spectrum that does not change."""


class SettingError(ValueError):
    """A setting that cannot be; `errors` has one line for everything that is wrong."""

    def __init__(self, errors: list[str]):
        self.errors = errors
        super().__init__("\n".join(errors))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """N agents with n records each; in each of T rounds s of them do K steps on batches of b.

    Either the noise is given, as a multiple of each release's sensitivity, or the epsilon to find it for.
    """

    agents: int
    sampled: int
    rounds: int
    records: int
    batch: int
    steps: int
    delta: float
    noise: float | None = None
    epsilon: float | None = None

    @classmethod
    def of(cls, given: Any) -> Setting:
        """From the values of a JSON object. Raises SettingError with everything that is wrong."""
        names = [field.name for field in fields(cls)]
        if not isinstance(given, Mapping):
            raise SettingError(["a setting is an object"])
        wrong = [f"{name}: unknown" for name in given if name not in names]
        values: dict[str, Any] = {name: given.get(name) for name in names}
        for name, most in LARGEST.items():
            value = values[name]
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                wrong.append(f"{name} = {value}: must be a whole number from 1 to {most}")
        for name, low, high in (("delta", 1e-10, 0.5), ("noise", 1e-3, 1e6), ("epsilon", 1e-3, 1e3)):
            value = values[name]
            if value is None and name != "delta":
                continue
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not number or not low <= float(value) <= high:
                wrong.append(f"{name} = {value}: must be a number from {low:g} to {high:g}")
        if (values["noise"] is None) == (values["epsilon"] is None):
            wrong.append("either noise or epsilon must be given")
        if not wrong:
            for name, bound in (("sampled", "agents"), ("batch", "records")):
                if values[name] > values[bound]:
                    wrong.append(f"{name} = {values[name]}: must be at most {bound} = {values[bound]}")
        if wrong:
            raise SettingError(wrong)
        return cls(**values)


@dataclass(frozen=True)
class Base:
    """A configuration whose numbers are chosen on the page.

    counts: the records of all agents, where the data say them and the page cannot. available: how many records the data
    set holds, where that is fixed. name: of what was explored, for the reader.
    """

    name: str
    tables: dict[str, Any]
    counts: tuple[int, ...] | None = None
    available: int | None = None

    @classmethod
    def synthetic(cls) -> Base:
        return cls("synthetic data", SYNTHETIC)

    @classmethod
    def of_run(cls, folder: RunFolder, folders: DataFolders) -> Base:
        """The configuration of a run. Raises ValueError where its training has nothing to choose."""
        tables = read_toml(folder.config)
        return cls.of_tables(str(tables.get("run", {}).get("name", folder.path.name)), tables, folder, folders)

    @classmethod
    def of_tables(
        cls, name: str, tables: dict[str, Any], folder: RunFolder | None, folders: DataFolders
    ) -> Base:
        trainer = TRAINERS.get(str(tables.get("trainer", {}).get("name")))
        if trainer is None or "noise" not in parameters(trainer) or steps_field(trainer) is None:
            raise ValueError(f"{name}: its trainer takes no noise and local steps to choose")
        plan = None if folder is None else folder.read("plan.json")
        data = tables.get("data", {})
        partition = PARTITIONS.get(str(data.get("partition", {}).get("name")))
        if "federation" in tables or partition is None or "agents" not in parameters(partition):
            if plan is None:
                raise ValueError(f"{name}: its agents are given by the data; run it, and explore the folder of the run")
            return cls(name, tables, counts=tuple(plan["counts"]))
        return cls(name, tables, available=None if _resizable(data) else _records(tables, folders))

    @property
    def start(self) -> dict[str, Any]:
        """The setting that the page begins with."""
        run, data, table = self.tables["run"], self.tables.get("data", {}), self.tables["trainer"]
        if self.counts is not None:
            agents, records = len(self.counts), min(self.counts)
        else:
            agents = int(data["partition"]["agents"])
            held = int(data["records"]) if "records" in data else self.available or 100 * agents
            records = min(held // agents, data["partition"].get("per_agent") or held)
        share = run.get("sampled", 1.0)
        sampled = share if isinstance(share, int) else max(1, round(share * agents))
        batch = records if table.get("batch", "full") == "full" else min(int(table["batch"]), records)
        privacy = self.tables.get("privacy", {})
        epsilon, noise = privacy.get("epsilon"), table.get("noise")
        relative = table.get("noise_unit") == "sensitivity"
        return {
            "agents": agents,
            "sampled": min(sampled, agents),
            "rounds": run["rounds"],
            "records": records,
            "batch": batch,
            "steps": table.get(steps_field(TRAINERS[table["name"]]) or "", 1),
            "epsilon": epsilon if epsilon is not None else None if noise and relative else 2.0,
            "noise": noise if epsilon is None and noise and relative else None,
            "delta": privacy.get("delta", 1e-5),
        }

    def plan(self, setting: Setting) -> Plan:
        """What the setting costs is a question of this plan. Its gradients are bounded by clipping; in units of the
        sensitivity it does not matter at which bound. With a target the noise is still to be found.

        Raises SettingError where the training cannot be.
        """
        table = self._trainer(setting, setting.noise or 1.0)
        cls = TRAINERS[table.pop("name")]
        known = parameters(cls)
        table = {name: 1.0 for name in ("clip", "clip_full", "clip_step") if name in known} | table
        built = build("trainer", cls, table)
        counts = self.counts or (setting.records,) * setting.agents
        errors = list(built.errors)
        if built.value is not None:
            trainer: Trainer = built.value
            errors += trainer.check(GENERIC, min(counts))
        if setting.sampled > len(counts):
            errors.append(f"sampled = {setting.sampled}: must be at most {len(counts)}, the number of agents")
        if errors:
            raise SettingError(errors)
        return Plan(trainer, GENERIC, counts, setting.sampled, setting.rounds, setting.delta)

    def config(self, setting: Setting) -> dict[str, Any]:
        """The configuration to run: the base with what was chosen."""
        tables = copy.deepcopy(self.tables)
        tables["run"] |= {"rounds": setting.rounds, "sampled": setting.sampled}
        tables["trainer"] = self._trainer(setting, setting.noise)
        privacy = tables.setdefault("privacy", {})
        privacy |= {"epsilon": setting.epsilon, "delta": setting.delta}
        if setting.epsilon is None:
            del privacy["epsilon"]
        if self.counts is None:
            data, partition = tables["data"], tables["data"]["partition"]
            partition |= {"agents": setting.agents}
            partition.pop("per_agent", None)  # agents with fewer records than the setting's would spend more
            if _resizable(data):
                data["records"] = setting.agents * setting.records
            if not _resizable(data) or partition["name"] != "iid":
                partition |= {"per_agent": setting.records, "equal": True}
            if "minimum" in parameters(PARTITIONS[partition["name"]]):
                partition["minimum"] = setting.records
        return tables

    def toml(self, setting: Setting) -> str:
        command = "server" if "federation" in self.tables else "run"
        return f"# Chosen in the explorer. pri-rfed {command} FILE\n\n" + self.as_toml(self.config(setting))

    @staticmethod
    def as_toml(tables: dict[str, Any]) -> str:
        return tomli_w.dumps(tables)

    def misfit(self, setting: Setting) -> str | None:
        """Why the data do not allow for the setting; None where they do."""
        needed = setting.agents * setting.records
        if self.counts is None and self.available is not None and needed > self.available:
            return f"the data set holds {self.available} records, and N n = {needed} are more"
        dimension = self.tables.get("data", {}).get("dimension")
        if self.counts is None and dimension is not None and needed < dimension:
            return f"at least {dimension} records are needed, as many as the data have dimensions, and N n = {needed}"
        return None

    def _trainer(self, setting: Setting, noise: float | None) -> dict[str, Any]:
        table = dict(self.tables["trainer"])
        for key in ("noise", "noise_unit", "nominal"):
            table.pop(key, None)
        smallest = setting.records if self.counts is None else min(self.counts)
        table[steps_field(TRAINERS[table["name"]]) or "steps"] = setting.steps
        table["batch"] = "full" if setting.batch >= smallest else setting.batch
        return table if noise is None else table | {"noise": noise, "noise_unit": "sensitivity"}


GENERIC = FrechetMean(Euclidean(1))
"""A problem that bounds no gradients by itself."""


def _resizable(data: Mapping[str, Any]) -> bool:
    """Whether the data set can have as many records as one likes."""
    source = SOURCES.get(str(data.get("source")))
    return source is not None and "records" in parameters(source)


def _records(tables: Mapping[str, Any], folders: DataFolders) -> int | None:
    """How many records the data set holds; None where it is not at hand."""
    options = {key: value for key, value in tables["data"].items() if key not in ("source", "partition")}
    source = build("data", SOURCES[tables["data"]["source"]], options)
    if source.value is None:
        return None
    try:
        return len(source.value.load(folders, stream(tables["run"].get("seed", 0), Role.DATA, 0)))
    except (ValueError, OSError):
        return None


def read_config(path: Path) -> dict[str, Any]:
    """The tables of a configuration, as `pri-rfed run` names them. Raises ConfigError."""
    tables = read_run(path)
    if not isinstance(tables["run"], dict):
        raise ConfigError(["run: must be a table"])
    return tables
