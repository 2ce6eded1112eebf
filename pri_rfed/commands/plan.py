"""A plan from a configuration, or from flags alone: shared by the commands about privacy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pri_rfed.experiment.config import Experiment
    from pri_rfed.privacy.planning import Plan

_WITHOUT = "Without CONFIG: "

Agents = Annotated[int | None, typer.Option(help=_WITHOUT + "N, how many agents there are.")]
Sampled = Annotated[int | None, typer.Option(help=_WITHOUT + "s, how many of them train in a round. Default: all.")]
RoundCount = Annotated[int | None, typer.Option(help=_WITHOUT + "T, how many rounds.")]
RecordCount = Annotated[int | None, typer.Option(help=_WITHOUT + "n, how many records each agent holds.")]
BatchOption = Annotated[str | None, typer.Option(help=_WITHOUT + "b, the records of a step, or 'full'. Default: full.")]
Steps = Annotated[
    int | None, typer.Option(help=_WITHOUT + "K, local steps in a round (dp-rsvrg: m, steps in an epoch). Default: 1.")
]
Clip = Annotated[float | None, typer.Option(help=_WITHOUT + "C, the bound that gradients are clipped to.")]
Noise = Annotated[float | None, typer.Option(help=_WITHOUT + "sigma, the standard deviation of the noise.")]
NoiseUnit = Annotated[
    str | None,
    typer.Option(help=_WITHOUT + "'absolute', or 'sensitivity': noise in multiples of it. Default: absolute."),
]
TrainerName = Annotated[str | None, typer.Option(help=_WITHOUT + "name of the local training. Default: dp-rsgd.")]
Epochs = Annotated[int | None, typer.Option(help=_WITHOUT + "S, epochs of dp-rsvrg.")]
Alpha = Annotated[float | None, typer.Option(help=_WITHOUT + "share of dp-rsvrg's variance for the full gradient.")]
Delta = Annotated[float | None, typer.Option(help="delta of all figures. Default: CONFIG's, or 1e-5.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.SUB=VALUE",
        help="Override an entry of CONFIG, or remove it: KEY.SUB= and no value. Without CONFIG: trainer.KEY=VALUE. "
        "Repeatable.",
    ),
]

DELTA = 1e-5


@dataclass(frozen=True)
class PlanFlags:
    """The flags as they were given; None where they were not."""

    agents: int | None = None
    sampled: int | None = None
    rounds: int | None = None
    records: int | None = None
    batch: str | None = None
    steps: int | None = None
    clip: float | None = None
    noise: float | None = None
    noise_unit: str | None = None
    trainer: str | None = None
    epochs: int | None = None
    alpha: float | None = None

    def given(self) -> list[str]:
        return [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value is not None]


def load_config(
    config: Path, flags: PlanFlags, assignments: list[str] | None, data_dir: Path | None
) -> Experiment:
    """The experiment of a configuration, whose noise is found where it has a target. Raises ConfigError."""
    from pri_rfed.data.download import DataFolders
    from pri_rfed.experiment.config import ConfigError, load, read_run

    if flags.given():
        raise ConfigError(
            [f"{flag} describes a plan without CONFIG; with one, use --set section.key=value" for flag in flags.given()]
        )
    return load(read_run(config, assignments or []), DataFolders(data_dir))


def plan_of(experiment: Experiment, delta: float | None) -> Plan:
    """What an experiment plans, with the delta that was given in place of its own."""
    from pri_rfed.privacy.planning import Plan

    return Plan(
        experiment.trainer,
        experiment.problem,
        tuple(experiment.agents.counts.tolist()),
        experiment.sampled,
        experiment.run.rounds,
        checked_delta(experiment.privacy.delta if delta is None else delta),
    )


def plan_from_flags(
    flags: PlanFlags, delta: float | None, assignments: list[str] | None, unknown: str | None = None
) -> Plan:
    """A plan that needs no data: gradients of any problem, bounded by clipping alone.

    unknown: what is looked for ("noise", "rounds", "sampled", "steps"), which then need not be given.
    Raises ConfigError with everything that is wrong, one line each.
    """
    from pri_rfed.experiment.config import ConfigError, override
    from pri_rfed.experiment.options import build, parameters, suggestion
    from pri_rfed.manifolds import Euclidean
    from pri_rfed.privacy.planning import Plan, steps_field
    from pri_rfed.problems import FrechetMean
    from pri_rfed.training import TRAINERS

    errors: list[str] = []
    name = flags.trainer or "dp-rsgd"
    if name not in TRAINERS:
        raise ConfigError([f"--trainer {name}: unknown; {suggestion(name, TRAINERS)}"])
    known = parameters(TRAINERS[name])
    table: dict[str, Any] = {}

    def put(flag: str, value: Any, *options: str) -> None:
        if value is None:
            return
        fitting = [option for option in options if option in known]
        if not fitting:
            errors.append(f"--{flag}: {name} has no such option")
        table.update(dict.fromkeys(fitting, value))

    put("batch", None if flags.batch is None else _batch(flags.batch, errors), "batch")
    put("steps", flags.steps, steps_field(TRAINERS[name]) or "steps")
    put("clip", flags.clip, "clip", "clip_full", "clip_step")
    put("noise", flags.noise, "noise")
    put("noise-unit", flags.noise_unit, "noise_unit")
    put("epochs", flags.epochs, "epochs")
    put("alpha", flags.alpha, "alpha")
    if unknown == "noise" and "noise" in known:
        table.setdefault("noise", 1.0)

    tables = override({"trainer": table}, assignments or [])
    errors += [f"--set {key}: without CONFIG there is only the section trainer" for key in tables if key != "trainer"]
    agents = _count("agents", flags.agents, errors)
    rounds = 1 if unknown == "rounds" else _count("rounds", flags.rounds, errors)
    records = _count("records", flags.records, errors)
    drawn = agents if flags.sampled is None else flags.sampled
    sampled = 1 if unknown == "sampled" else _count("sampled", drawn, errors)
    if sampled > agents:
        errors.append(f"--sampled {sampled}: must not exceed --agents {agents}")
    try:
        delta = checked_delta(DELTA if delta is None else delta)
    except ValueError as error:
        errors.append(str(error))
    options = tables["trainer"]
    if "noise" in known and "noise" not in options:
        errors.append("--noise is missing")
        options = options | {"noise": 1.0}
    bounds = [option for option in ("clip", "clip_full", "clip_step") if option in known]
    if options.get("noise") != 0 and any(option not in options for option in bounds):
        errors.append("--clip is missing")
    trainer = build("trainer", TRAINERS[name], options)
    flagged = r"^trainer\.(noise|noise_unit|batch|steps|clip|epochs|alpha)\b"
    errors += [re.sub(flagged, _flag, error) for error in trainer.errors]
    problem = FrechetMean(Euclidean(1))  # a problem that bounds no gradients by itself
    if trainer.value is not None and not errors:
        errors += trainer.value.check(problem, records)
    if errors:
        raise ConfigError(errors)
    assert trainer.value is not None and delta is not None
    return Plan(trainer.value, problem, (records,) * agents, sampled, rounds, delta)


def _flag(option: re.Match[str]) -> str:
    return f"--{option[1].replace('_', '-')}"


def _count(flag: str, value: int | None, errors: list[str]) -> int:
    if value is None:
        errors.append(f"--{flag} is missing")
    elif value < 1:
        errors.append(f"--{flag} {value}: must be at least 1")
    return max(1, value or 1)


def _batch(text: str, errors: list[str]) -> int | str:
    if text == "full":
        return text
    try:
        return int(text)
    except ValueError:
        errors.append(f"--batch {text}: must be a whole number, or full")
        return "full"


def checked_delta(delta: float) -> float:
    """The delta, unless it is none: then raises ValueError."""
    if not 0 < delta < 1:
        raise ValueError(f"--delta {delta:g}: must lie strictly between 0 and 1")
    return delta
