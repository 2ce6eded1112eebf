"""One run: simulate it, keep its folder up to date, and say what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tomli_w

from pri_rfed.coordinator import RunStopped
from pri_rfed.data.agents import AgentArrays
from pri_rfed.experiment.config import Experiment
from pri_rfed.experiment.folder import RunFolder, to_json, versions
from pri_rfed.experiment.plots import plot_run
from pri_rfed.manifolds.base import Array
from pri_rfed.privacy.accountants import best_epsilon
from pri_rfed.privacy.dominance import hardest
from pri_rfed.privacy.events import FORMAT_VERSION, Event, repeat
from pri_rfed.privacy.report import by_accountant, epsilon_by_round, finite_or_none, global_event
from pri_rfed.problems import Problem
from pri_rfed.simulation import Result, Runtime, State, simulate

SECONDS_BETWEEN_CHECKPOINTS = 1.0
POINTS_OF_A_CURVE = 25
Curve = list[tuple[int, float]]


class Interrupted(Exception):
    """The run was interrupted after `round` rounds; its folder holds all that it takes to go on. reason: why it could
    not go on by itself; None where somebody stopped it."""

    def __init__(self, folder: RunFolder, round: int, reason: str | None = None):
        self.folder, self.round, self.reason = folder, round, reason


@dataclass(frozen=True)
class NamedRuntime:
    """Where the rounds are carried out; None: in this process, all agents at once."""

    name: str
    carry_out: Runtime | None = None


SIMULATION = NamedRuntime("simulation")


@dataclass(frozen=True)
class Progress:
    """After `round` of `rounds` rounds: the cost where it was evaluated, the global epsilon spent (infinite where
    something left without a mechanism)."""

    round: int
    rounds: int
    cost: float | None
    epsilon: float


def start(
    experiment: Experiment, folder: RunFolder, report: Callable[[Progress], None], runtime: NamedRuntime = SIMULATION
) -> dict[str, Any]:
    """Run the experiment in a new folder; returns its summary. Raises Interrupted on Ctrl-C, and when agents that are
    not in this process fail the run."""
    folder.write("config.toml", tomli_w.dumps(experiment.resolved))
    folder.write("versions.json", to_json(versions()))
    folder.write("rounds.jsonl", "")
    return _go(experiment, folder, None, report, runtime)


def resume(
    experiment: Experiment, folder: RunFolder, report: Callable[[Progress], None], runtime: NamedRuntime = SIMULATION
) -> dict[str, Any]:
    """Go on with the run in the folder from its checkpoint; returns its summary. Raises what `start` does."""
    state = State.load(folder.checkpoint) if folder.checkpoint.is_file() else None
    folder.keep_rounds(0 if state is None else state.round)
    return _go(experiment, folder, state, report, runtime)


def _go(
    experiment: Experiment,
    folder: RunFolder,
    state: State | None,
    report: Callable[[Progress], None],
    runtime: NamedRuntime,
) -> dict[str, Any]:
    folder.write("plan.json", to_json(_plan(experiment)))
    spent = _global_curve(experiment)
    latest, saved = state, -SECONDS_BETWEEN_CHECKPOINTS
    rounds = experiment.run.rounds

    def on_round(now: State) -> None:
        nonlocal latest, saved
        before, latest = latest, now
        if now.round == (0 if before is None else before.round):
            now.save(folder.checkpoint)  # agents were drawn in vain, and have spent
            return
        record = now.history[-1]
        folder.append_round(dict(record))
        # What other processes did is never done again; a simulation can repeat a second's rounds.
        if runtime.carry_out or now.round == rounds or time.monotonic() - saved >= SECONDS_BETWEEN_CHECKPOINTS:
            now.save(folder.checkpoint)
            saved = time.monotonic()
        epsilon = next(epsilon for t, epsilon in spent if t >= now.round)
        report(Progress(now.round, rounds, record.get("cost"), epsilon))

    try:
        result = simulate(
            experiment.problem,
            experiment.agents,
            experiment.trainer,
            rounds=rounds,
            sampled=experiment.sampled,
            aggregation=experiment.aggregation,
            delta=experiment.privacy.delta,
            seed=experiment.run.seed,
            output=experiment.run.output,
            evaluate_every=experiment.run.evaluate_every if isinstance(experiment.agents, AgentArrays) else 0,
            on_round=on_round,
            resume_from=state,
            runtime=runtime.carry_out,
        )
        return _finish(experiment, folder, result, spent, runtime.name)
    except (KeyboardInterrupt, RunStopped) as stop:
        if latest is not None:
            latest.save(folder.checkpoint)
        reason = str(stop) if isinstance(stop, RunStopped) else None
        raise Interrupted(folder, 0 if latest is None else latest.round, reason) from None


def _plan(experiment: Experiment) -> dict[str, Any]:
    """What agents will release, all of it public, so that a run can be accounted for while it goes on."""
    counts = experiment.agents.counts.tolist()
    local = {n: experiment.trainer.event(experiment.problem, n).to_dict() for n in sorted(set(counts))}
    return {
        "version": FORMAT_VERSION,
        "rounds": experiment.run.rounds,
        "sampled": experiment.sampled,
        "delta": experiment.privacy.delta,
        "counts": counts,
        "local_events": [{"records": n, "event": event} for n, event in local.items()],
    }


# Afterwards ---------------------------------------------------------------------------------------------------------


def _finish(experiment: Experiment, folder: RunFolder, result: Result, spent: Curve, runtime: str) -> dict[str, Any]:
    """Write what a finished run has to show; the summary last, for it says that the run is finished."""
    folder.write_point(result.point)
    privacy = _privacy(experiment, result, spent)
    folder.write("privacy.json", to_json(privacy))
    summary = _summary(experiment, folder, result, privacy, runtime)
    title = f"{experiment.run.name}: {experiment.problem.name}, {experiment.trainer.name}"
    plot_run(folder.path, title, folder.rounds(), privacy["by_round"])
    folder.write("summary.json", to_json(summary))
    return summary


def _hardest(experiment: Experiment) -> list[Event]:
    """What a local training releases, of the agents for whom it is hardest on privacy."""
    counts = np.unique(experiment.agents.counts).tolist()
    return hardest(experiment.trainer.event(experiment.problem, n) for n in counts)


def _global_curve(experiment: Experiment) -> Curve:
    """(t, the global epsilon after t rounds), at up to 25 rounds; in between, the next one holds."""
    curves = [
        epsilon_by_round(
            event, experiment.sampled, len(experiment.agents), experiment.run.rounds, experiment.privacy.delta
        )
        for event in _hardest(experiment)
    ]
    return [(points[0][0], max(epsilon for _, epsilon in points)) for points in zip(*curves, strict=True)]


def _ledger_curve(experiment: Experiment, result: Result) -> Curve:
    """(t, the largest epsilon of an agent's ledger after t rounds), at up to 25 rounds; in between, the next holds."""
    counts = experiment.agents.counts
    taken = np.zeros(len(counts), dtype=np.int64)
    most: list[dict[int, int]] = []
    sizes = np.unique(counts).tolist()
    for record in result.history:
        for draw in (*record.get("repeated", ()), record):
            taken[draw["sampled"]] += 1
        most.append({n: int(taken[counts == n].max()) for n in sizes})
    length = len(most)
    at = sorted({max(1, round(length ** (i / (POINTS_OF_A_CURVE - 1)))) for i in range(POINTS_OF_A_CURVE)})
    delta = experiment.privacy.delta
    return [
        (
            t,
            max(
                best_epsilon(event, delta).epsilon
                for event in hardest(repeat(result.local_events[n], times) for n, times in most[t - 1].items())
            ),
        )
        for t in at
    ]


def _privacy(experiment: Experiment, result: Result, spent: Curve) -> dict[str, Any]:
    """The privacy record: what was released, both figures, and what every accountant makes of the run."""
    privacy = result.privacy
    delta = experiment.privacy.delta
    out = privacy.to_dict()
    worst = max(privacy.groups, key=lambda group: group.epsilon_global)
    claims = by_accountant(global_event(worst.group.local, privacy.rounds), delta)
    out["accountants"] = {
        name: {key: finite_or_none(value) if isinstance(value, float) else value for key, value in claim.items()}
        for name, claim in claims.items()
    }
    event = result.agent_level_event
    if event is not None:
        epsilon = finite_or_none(best_epsilon(event, delta).epsilon)
        out["agent_level"] = {"epsilon": epsilon, "delta": delta, "event": event.to_dict()}
    private = privacy.is_private
    out["by_round"] = {
        "delta": delta,
        "global": spent if private else [],
        "ledger": _ledger_curve(experiment, result) if private else [],
    }
    return out


def mean_loss(problem: Problem, agents: AgentArrays, point: Array) -> float:
    """F(w), agent by agent. Not private."""
    return float(sum(problem.loss(point, agents[i]).sum() for i in range(len(agents))) / agents.counts.sum())


def _summary(
    experiment: Experiment, folder: RunFolder, result: Result, privacy: dict[str, Any], runtime: str
) -> dict[str, Any]:
    last = result.history[-1]
    cost, risk = last.get("cost"), last.get("excess_risk")
    if experiment.run.output == "uniform" and cost is not None and isinstance(experiment.agents, AgentArrays):
        # The diagnostics are of the last point; the output is an earlier one.
        least = None if risk is None else cost - risk
        cost = mean_loss(experiment.problem, experiment.agents, result.point)
        risk = None if least is None else cost - least
    return {
        "run_dir": str(folder.path),
        "name": experiment.run.name,
        "runtime": runtime,
        "data": experiment.description,
        "problem": experiment.problem.name,
        "trainer": experiment.trainer.name,
        "agents": len(experiment.agents),
        "records": int(experiment.agents.counts.sum()),
        "sampled": experiment.sampled,
        "rounds": result.rounds,
        "seed": experiment.run.seed,
        "seconds": sum(record["seconds"] for record in result.history),
        "cost": None if cost is None else finite_or_none(cost),
        "excess_risk": None if risk is None else finite_or_none(risk),
        "refused": sum(len(record["refused"]) for record in result.history),
        "private": privacy["private"],
        "unit": privacy["unit"],
        "delta": privacy["delta"],
        "epsilon_target": experiment.privacy.epsilon,
        "epsilon_global": privacy["epsilon_global"],
        "epsilon_ledger_max": privacy["epsilon_ledger_max"],
        "noise": getattr(result.trainer, "noise", None),
        "noise_unit": getattr(result.trainer, "noise_unit", None),
    }


def in_words(summary: dict[str, Any], privacy: dict[str, Any]) -> str:
    """The summary of a run for people: what ran, what is guaranteed, what is a diagnostic."""
    s, t = summary["sampled"], summary["rounds"]
    each = "all of them" if s == summary["agents"] else f"{s} of them"
    lines = [
        f"{summary['name']}: {summary['problem']} by {summary['trainer']} on {summary['data']}",
        f"  {summary['agents']} agents with {summary['records']} records, {each} in each of {t} rounds",
        f"  {summary['seconds']:.3g} s of training and aggregation",
        "",
        *_guarantee_in_words(summary, privacy),
    ]
    if summary["cost"] is not None:
        lines += ["", "Diagnostics, not private: only a simulation can see them"]
        lines.append(f"  cost F(w)    {summary['cost']:.6g}")
        if summary["excess_risk"] is not None:
            lines.append(f"  excess risk  {summary['excess_risk']:.4g}")
    if summary["refused"]:
        lines.append(f"  uploads refused: {summary['refused']}; rounds.jsonl has the reasons")
    return "\n".join([*lines, "", f"Everything is in {summary['run_dir']}"])


def _guarantee_in_words(summary: dict[str, Any], privacy: dict[str, Any]) -> Sequence[str]:
    if not summary["private"]:
        return ["No privacy guarantee: agents upload results of their records without a mechanism (ε = ∞)"]
    delta = f"δ = {summary['delta']:g}"
    before, after = summary["epsilon_global"], summary["epsilon_ledger_max"]
    lines = [
        "Privacy guarantee, for every agent",
        f"  before the run  ε = {before:.4g} at {delta}, if agents are drawn as announced and unpredictably",
        f"  after the run   ε = {after:.4g} at {delta}, whoever chose the agents: the largest ledger of an agent",
        f"  protected       {privacy['neighbours']}",
        "  against         everybody who sees all that is sent and who took part, the server included",
    ]
    if "agent_level" in privacy:
        level = privacy["agent_level"]
        lines.append(f"  whole agents    ε = {level['epsilon']:.4g} at {delta}, with a server trusted with the uploads")
    return lines
