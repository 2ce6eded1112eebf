"""`pri-rfed account` and `pri-rfed calibrate`: what a plan costs, and which plan fits a budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pri_rfed.commands.data import DataDir
from pri_rfed.commands.plan import (
    Agents,
    Alpha,
    Assignments,
    BatchOption,
    Clip,
    Delta,
    Epochs,
    Noise,
    NoiseUnit,
    PlanFlags,
    RecordCount,
    RoundCount,
    Sampled,
    Steps,
    TrainerName,
    checked_delta,
    load_config,
    plan_from_flags,
    plan_of,
)

if TYPE_CHECKING:
    from pri_rfed.experiment.config import Experiment
    from pri_rfed.privacy.planning import Plan

SOLVABLE = ("noise", "rounds", "sampled", "steps")
LEAST_WIDTH = 80
"""A narrower table of claims would have its figures cut off; it is better broken by the terminal."""

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object; an infinite epsilon is null.")]


def account(
    config: Annotated[
        Path | None,
        typer.Argument(help="A configuration, a table of published claims (configs/table1.toml), or a run's folder."),
    ] = None,
    agents: Agents = None,
    sampled: Sampled = None,
    rounds: RoundCount = None,
    records: RecordCount = None,
    batch: BatchOption = None,
    steps: Steps = None,
    clip: Clip = None,
    noise: Noise = None,
    noise_unit: NoiseUnit = None,
    trainer: TrainerName = None,
    epochs: Epochs = None,
    alpha: Alpha = None,
    delta: Delta = None,
    assignments: Assignments = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show what a plan costs in privacy, by every accountant, before anything runs."""
    from pri_rfed.experiment.config import read_toml
    from pri_rfed.privacy import planning

    flags = PlanFlags(
        agents, sampled, rounds, records, batch, steps, clip, noise, noise_unit, trainer, epochs, alpha
    )
    if config is None:
        plan = plan_from_flags(flags, delta, assignments)
        _tell(_described(plan) | planning.account(plan), as_json)
    elif config.is_dir():
        _only_delta(flags, assignments)
        _tell(_run_figures(config, delta), as_json)
    elif "account" in (tables := read_toml(config)):
        _only_delta(flags, assignments)
        _tell_claims(_claims(tables, delta), as_json)
    else:
        experiment = load_config(config, flags, assignments, data_dir)
        plan = plan_of(experiment, delta)
        _tell(_described(plan) | planning.account(plan) | _agent_level(experiment, plan), as_json)


def calibrate(
    epsilon: Annotated[float | None, typer.Option(help="The target for the whole run. Default: CONFIG's.")] = None,
    config: Annotated[Path | None, typer.Argument(help="A configuration.")] = None,
    solve: Annotated[str, typer.Option(help=f"What to look for: {', '.join(SOLVABLE)}.")] = "noise",
    optimise_alpha: Annotated[
        bool, typer.Option("--optimise-alpha", help="Look for dp-rsvrg's best split of the variance as well.")
    ] = False,
    agents: Agents = None,
    sampled: Sampled = None,
    rounds: RoundCount = None,
    records: RecordCount = None,
    batch: BatchOption = None,
    steps: Steps = None,
    clip: Clip = None,
    noise: Noise = None,
    noise_unit: NoiseUnit = None,
    trainer: TrainerName = None,
    epochs: Epochs = None,
    alpha: Alpha = None,
    delta: Delta = None,
    assignments: Assignments = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Find the least noise, or the most rounds, sampled agents or local steps, for a target of the whole run."""
    from pri_rfed.privacy import planning

    if solve not in SOLVABLE:
        raise ValueError(f"--solve {solve}: must be one of {', '.join(SOLVABLE)}")
    flags = PlanFlags(
        agents, sampled, rounds, records, batch, steps, clip, noise, noise_unit, trainer, epochs, alpha
    )
    if config is None:
        plan = plan_from_flags(flags, delta, assignments, solve)
    else:
        experiment = load_config(config, flags, assignments, data_dir)
        plan = plan_of(experiment, delta)
        epsilon = experiment.privacy.epsilon if epsilon is None else epsilon
    if epsilon is None:
        raise ValueError("--epsilon is missing")
    if not 0 < epsilon < float("inf"):
        raise ValueError(f"--epsilon {epsilon:g}: must be a positive finite number")
    found = planning.solve(plan, epsilon, solve, optimise_alpha)  # type: ignore[arg-type]
    out: dict[str, Any] = {"solve": solve, "target": {"epsilon": epsilon, "delta": plan.delta}}
    out |= _described(found) | planning.account(found)
    if solve == "noise" and (rule := planning.published_rule(found, epsilon)) is not None:
        out["published"] = {
            "of": "one local training",
            "sound": False,
            "sigma": rule.sigma,
            "delta": rule.delta,
            "claimed_epsilon": rule.epsilon_claimed,
            "true_epsilon": planning.finite_or_none(rule.epsilon_true),
        }
    _tell(out, as_json)


# What is said ---------------------------------------------------------------------------------------------------------


def _described(plan: Plan) -> dict[str, Any]:
    """The plan's public parameters."""
    from pri_rfed.experiment.options import plain
    from pri_rfed.privacy.planning import steps_field

    options = plain(plan.trainer)
    steps = steps_field(plan.trainer)
    return {
        "agents": plan.pool,
        "sampled": plan.sampled,
        "rounds": plan.rounds,
        "records": sorted(set(plan.counts)),
        "steps": options.get(steps) if steps else None,
        "noise": options.get("noise"),
        "noise_unit": options.get("noise_unit"),
        "trainer": {"name": plan.trainer.name, **options},
    }


def _agent_level(experiment: Experiment, plan: Plan) -> dict[str, Any]:
    """What the aggregation promises to whole agents, where it does."""
    from pri_rfed.privacy.accountants import best_epsilon
    from pri_rfed.privacy.events import repeat
    from pri_rfed.privacy.report import UNIT_IN_WORDS, Unit, finite_or_none

    event = experiment.aggregation.event(plan.sampled, plan.pool)
    if event is None:
        return {}
    epsilon = best_epsilon(repeat(event, plan.rounds), plan.delta).epsilon
    return {
        "agent_level": {
            "unit": str(Unit.AGENT),
            "neighbours": UNIT_IN_WORDS[Unit.AGENT],
            "epsilon": finite_or_none(epsilon),
            "delta": plan.delta,
        }
    }


def _only_delta(flags: PlanFlags, assignments: list[str] | None) -> None:
    wrong = [*flags.given(), *(f"--set {text}" for text in assignments or [])]
    if wrong:
        raise ValueError("\n".join(f"{flag}: only --delta and --json go with such a file" for flag in wrong))


def _run_figures(folder: Path, delta: float | None) -> dict[str, Any]:
    """A finished run, accounted for anew from its events."""
    from pri_rfed.experiment.folder import RunFolder
    from pri_rfed.experiment.run import command_to_go_on
    from pri_rfed.privacy.events import event_from_dict
    from pri_rfed.privacy.planning import figures
    from pri_rfed.privacy.report import AgentGroup, Rounds

    run = RunFolder.open(folder)
    record = run.read("privacy.json")
    if record is None:
        raise ValueError(f"{folder}: this run has no privacy.json yet; `{command_to_go_on(run)}` finishes it")
    try:
        groups = [AgentGroup(g["records"], g["agents"], event_from_dict(g["local_event"])) for g in record["groups"]]
        took_part = {g["records"]: g["most_participations"] for g in record["groups"]}
        rounds = [Rounds(r["sampled"], r["pool"], r["count"]) for r in record["rounds"]]
        out = figures(groups, rounds, checked_delta(record["delta"] if delta is None else delta), took_part)
        return {"run_dir": str(folder)} | out | {"neighbours": record["neighbours"]}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / 'privacy.json'}: no privacy record of this project: {error!r}") from error


def _tell(out: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(out, allow_nan=False))
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    delta = f"δ = {out['delta']:g}"
    if "solve" in out:
        console.print(_solution_in_words(out))
    if out["unit"]:
        console.print(f"unit: {out['unit']} ({out['neighbours']})")
    draws = " + ".join(f"{d['count']} rounds of {d['sampled']} of {d['pool']} agents" for d in out["draws"])
    given = out.get("noise") is not None and out.get("solve") != "noise"
    console.print(f"plan: {draws}" + (f", σ = {_noise(out)}" if given else "") + "\n")
    before, after = out["global"], out["ledger"]
    console.print(f"before the run (global)  ε = {_epsilon(before['epsilon'])} at {delta}, agents drawn as announced")
    times = f"an agent that took part {after['participations']} times, whoever chose it"
    console.print(f"after it (ledger)        ε = {_epsilon(after['epsilon'])} at {delta}, {times}\n")
    console.print(_accountants(out))
    for name, entry in out["accountants"].items():
        if not entry["sound"]:
            console.print(f"{name}: {entry['caveat']}")
    if len(out["groups"]) > 1:
        console.print()
        console.print(_groups(out))
    if "agent_level" in out:
        level = out["agent_level"]
        console.print(f"\nunit: {level['unit']} ({level['neighbours']})")
        console.print(f"the aggregation: ε = {_epsilon(level['epsilon'])} at {delta}")
    if "published" in out:
        rule = out["published"]
        console.print(
            f"\nThe papers' rule σ² = c T log(1/δ) L0²/(n² ε²) with c = 1 takes σ = {rule['sigma']:.6g} for one local "
            f"training\nand claims ε = {rule['claimed_epsilon']:g} for it. NOT A GUARANTEE: truly it has "
            f"ε = {_epsilon(rule['true_epsilon'])} at {delta}"
        )


def _solution_in_words(out: dict[str, Any]) -> str:
    target = f"ε ≤ {out['target']['epsilon']:g} at δ = {out['target']['delta']:g}, for the whole run and every agent"
    if out["solve"] == "noise":
        alpha = out["trainer"].get("alpha")
        return (
            f"least noise: σ = {_noise(out)}"
            + (f", alpha = {alpha:.4g}" if alpha is not None else "")
            + f"\ntarget: {target}"
        )
    from pri_rfed.privacy.planning import MOST_COUNT

    found = out[out["solve"]]
    name = {"rounds": "rounds", "sampled": "sampled agents", "steps": "local steps"}[out["solve"]]
    more = " (more was not looked for)" if found == MOST_COUNT else ""
    return f"most {name}: {found}{more}\ntarget: {target}"


def _noise(out: dict[str, Any]) -> str:
    unit = "times each agent's sensitivity" if out["noise_unit"] == "sensitivity" else "in the Riemannian norm"
    return f"{out['noise']:.8g} {unit}"


def _epsilon(value: float | None) -> str:
    return "∞ (not private)" if value is None else f"{value:.4g}"


def _accountants(out: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table("accountant", "ε before (global)", "ε after (ledger)", "", box=None, pad_edge=False)
    table.columns[1].justify = table.columns[2].justify = "right"
    for name, entry in out["accountants"].items():
        shown = [
            "–" if f"{figure}_unsupported" in entry else _epsilon(entry[f"{figure}_epsilon"])
            for figure in ("global", "ledger")
        ]
        table.add_row(name, *shown, "sound" if entry["sound"] else "NOT A GUARANTEE")
    return table


def _groups(out: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table("records", "agents", "ε of one training", "ε before", "ε after", box=None, pad_edge=False)
    for column in table.columns:
        column.justify = "right"
    for g in out["groups"]:
        figures = [_epsilon(g[key]["epsilon"]) for key in ("local", "global", "ledger")]
        table.add_row(f"≥ {g['records']}", str(g["agents"]), *figures)
    return table


# Published claims -----------------------------------------------------------------------------------------------------


def _claims(tables: dict[str, Any], delta: float | None) -> dict[str, Any]:
    """The tables of published claims that a file describes: [account] with epsilon, delta, delta_hat, and rows."""
    from pri_rfed.experiment.config import ConfigError
    from pri_rfed.experiment.options import Built, build, shown
    from pri_rfed.privacy.planning import ClaimedRow, ClaimedTable

    errors = [f"{key}: unknown section beside account" for key in tables if key != "account"]
    section = tables["account"]
    if not isinstance(section, dict):
        raise ConfigError([f"account = {shown(section)}: must be a table"])
    given = section.get("row")
    table = build("account", ClaimedTable, {key: value for key, value in section.items() if key != "row"})
    rows: list[Built[ClaimedRow]] = []
    if not isinstance(given, list) or not given or not all(isinstance(row, dict) for row in given):
        errors.append("account.row: must be a list of tables [[account.row]], each with agents, sampled, rounds")
    else:
        rows = [build(f"account.row {i}", ClaimedRow, row) for i, row in enumerate(given, start=1)]
    errors += table.errors + [error for row in rows for error in row.errors]
    if delta is not None:
        errors.append("--delta: a table of claims has its own delta")
    if errors or table.value is None:
        raise ConfigError(errors)
    figures = table.value.figures([row.value for row in rows if row.value is not None])
    return {**table.table, "rows": figures}


def _tell_claims(out: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(out, allow_nan=False))
        return
    from rich.console import Console
    from rich.table import Table

    from pri_rfed.privacy.accountants import ACCOUNTANTS

    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, LEAST_WIDTH)
    console.print(
        f"One local training is one Gaussian release, exactly (ε, δ) = ({out['epsilon']:g}, {out['delta']:g}); "
        f"δ̂ = {out['delta_hat']:g}."
    )
    claims = ("claimed ε,\nsequential", "its δ", "claimed ε,\nadvanced", "its δ")
    headings = ("N", "s", "s/N", "T", *claims, "true ε,\nglobal", "true ε,\nledger")
    table = Table(*headings, box=None, pad_edge=False)
    for column in table.columns:
        column.justify = "right"
    for row in out["rows"]:
        claim = row["theorem-4.2"]
        cells = [str(row["agents"]), str(row["sampled"]), f"{row['rate']:g}", str(row["rounds"])]
        cells += [_claimed(claim["sequential"]["epsilon"]), f"{claim['sequential']['delta']:.4g}"]
        cells += [_claimed(claim["advanced"]["epsilon"]), f"{row['delta']:.4g}"]
        meaningless = row["global"]["epsilon"] is None
        cells += ["–" if meaningless else _epsilon(row[figure]["epsilon"]) for figure in ("global", "ledger")]
        table.add_row(*cells)
    console.print(table)
    console.print("\ntrue: smallest sound accountant, at the δ of the advanced claim; – where that is no probability")
    console.print(f"claim, theorem-4.2: {ACCOUNTANTS['theorem-4.2'].caveat}")


def _claimed(value: float | None) -> str:
    return "∞" if value is None else f"{value:.4g}"
