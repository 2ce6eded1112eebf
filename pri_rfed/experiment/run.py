"""One run: simulate it, keep its folder up to date, and say what came of it."""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tomli_w

from pri_rfed.coordinator import RunStopped, draws_of
from pri_rfed.data.agents import AgentArrays, most_by_size
from pri_rfed.experiment.config import Experiment, read_toml
from pri_rfed.experiment.folder import RunFolder, RunFolderError, to_json, versions
from pri_rfed.experiment.plots import plot_run
from pri_rfed.experiment.spending import Spending
from pri_rfed.privacy.accountants import best_epsilon
from pri_rfed.privacy.dominance import hardest
from pri_rfed.privacy.events import FORMAT_VERSION, repeat
from pri_rfed.privacy.ledger import content_hash
from pri_rfed.privacy.report import (
    RunPrivacy,
    by_accountant,
    finite_or_none,
    global_event,
    largest_epsilon,
    neighbours,
    rounds_of_curve,
)
from pri_rfed.simulation import Evaluation, Result, Runtime, State, simulate
from pri_rfed.training.steps import StepSize
from pri_rfed.wire import exchange_sizes

SECONDS_BETWEEN_CHECKPOINTS = 1.0
MOST_RECORD_COUNTS = 8
"""Ledgers are drawn agent by agent where agents hold at most so many different numbers of records."""
Curve = list[tuple[int, float]]


class Interrupted(Exception):
    """The run was interrupted after `round` rounds; its folder holds all that it takes to go on. reason: why it could
    not go on by itself; None where somebody stopped it."""

    def __init__(self, folder: RunFolder, round: int, reason: str | None = None):
        self.folder, self.round, self.reason = folder, round, reason


@contextmanager
def stoppable() -> Iterator[None]:
    """Have the signal SIGTERM end the block as Ctrl-C does, so that it can keep what was done and stop what it started.
    For the main thread."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
    with folder.held():
        folder.write("config.toml", tomli_w.dumps(experiment.resolved))
        folder.write("versions.json", to_json(versions()))
        folder.write("plan.json", to_json(_plan(_spending(experiment))))
        if (contents := _contents(experiment)) is not None:
            folder.write("data.sha256", contents)
        folder.write_rounds(())
        return _go(experiment, folder, None, report, runtime)


def resume(
    experiment: Experiment, folder: RunFolder, report: Callable[[Progress], None], runtime: NamedRuntime = SIMULATION
) -> dict[str, Any]:
    """Go on with the run in the folder from its checkpoint; returns its summary. Raises what `start` does, and
    RunFolderError while another process works on the run, or if the records are others than at its start."""
    with folder.held():
        contents, known = _contents(experiment), folder.path / "data.sha256"
        if known.is_file() and known.read_text(encoding="utf-8") != contents:
            raise RunFolderError(
                f"{folder.path}: the agents' records are not those that the run was started with, and a run of both "
                "would be of neither; put the old data back, or start a new run"
            )
        if folder.read("plan.json") is None:  # it ended before it began
            folder.write("plan.json", to_json(_plan(_spending(experiment))))
        state = State.load(folder.checkpoint) if folder.checkpoint.is_file() else None
        folder.write_rounds(() if state is None else state.history)
        (folder.path / "stopped.json").unlink(missing_ok=True)
        return _go(experiment, folder, state, report, runtime)


def _go(
    experiment: Experiment,
    folder: RunFolder,
    state: State | None,
    report: Callable[[Progress], None],
    runtime: NamedRuntime,
) -> dict[str, Any]:
    spending = _spending(experiment)
    planned = spending.before()
    latest, saved = state, -SECONDS_BETWEEN_CHECKPOINTS
    rounds = experiment.run.rounds

    def on_round(now: State) -> None:
        nonlocal latest, saved
        before, latest = latest, now
        if now.round == (0 if before is None else before.round):
            now.save(folder.checkpoint)  # agents were drawn in vain, and have spent
            return
        record = now.history[-1]
        folder.append_round(record)
        # What other processes did is never done again; a simulation can repeat a second's rounds.
        if runtime.carry_out or now.round == rounds or time.monotonic() - saved >= SECONDS_BETWEEN_CHECKPOINTS:
            now.save(folder.checkpoint)
            saved = time.monotonic()
        if runtime.carry_out:  # only where others train is a round ever drawn in vain
            epsilon = spending.spent(now.history, planned)
        else:
            epsilon = next(epsilon for t, epsilon in planned if t >= now.round)
        report(Progress(now.round, rounds, record.get("cost"), epsilon))

    try:
        evaluation = evaluation_of(experiment)
        result = carry_out(experiment, evaluation, on_round=on_round, resume_from=state, runtime=runtime.carry_out)
        spent = [(t, spending.spent(result.history[:t], planned)) for t, _ in planned]
        return _finish(experiment, folder, result, evaluation, spent, runtime.name)
    except (KeyboardInterrupt, RunStopped) as stop:
        if latest is not None:
            latest.save(folder.checkpoint)
        done, failed = (0, ()) if latest is None else (latest.round, latest.failed)
        reason = str(stop) if isinstance(stop, RunStopped) else None
        folder.write("stopped.json", to_json({"round": done, "reason": reason, "failed": list(failed)}))
        raise Interrupted(folder, done, reason) from None


def evaluation_of(experiment: Experiment) -> Evaluation | None:
    """What computes the run's diagnostics; None where there are none."""
    if not isinstance(experiment.agents, AgentArrays) or not experiment.run.evaluate_every:
        return None
    return Evaluation(experiment.problem, experiment.agents)


def carry_out(
    experiment: Experiment,
    evaluation: Evaluation | None,
    *,
    on_round: Callable[[State], None] | None = None,
    resume_from: State | None = None,
    runtime: Runtime | None = None,
) -> Result:
    """The experiment's rounds, as `simulate` does them."""
    return simulate(
        experiment.problem,
        experiment.agents,
        experiment.trainer,
        rounds=experiment.run.rounds,
        sampled=experiment.sampled,
        aggregation=experiment.aggregation,
        delta=experiment.privacy.delta,
        seed=experiment.run.seed,
        output=experiment.run.output,
        evaluate_every=0 if evaluation is None else experiment.run.evaluate_every,
        on_round=on_round,
        resume_from=resume_from,
        runtime=runtime,
        evaluation=evaluation,
    )


def _spending(experiment: Experiment) -> Spending:
    """What the run is going to spend."""
    counts = experiment.agents.counts.tolist()
    local = {n: experiment.trainer.event(experiment.problem, n) for n in sorted(set(counts))}
    return Spending(tuple(counts), experiment.sampled, experiment.run.rounds, experiment.privacy.delta, local)


def _plan(spending: Spending) -> dict[str, Any]:
    """What agents will release, all of it public, so that a run can be accounted for while it goes on."""
    return {
        "version": FORMAT_VERSION,
        "rounds": spending.rounds,
        "sampled": spending.sampled,
        "delta": spending.delta,
        "counts": list(spending.counts),
        "local_events": [{"records": n, "event": event.to_dict()} for n, event in spending.local.items()],
    }


def _contents(experiment: Experiment) -> str | None:
    """A hash of all agents' records; None where they are not at hand."""
    if not isinstance(experiment.agents, AgentArrays):
        return None
    hashes = (content_hash(experiment.agents[i]) for i in range(len(experiment.agents)))
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


# Afterwards ---------------------------------------------------------------------------------------------------------


def _finish(
    experiment: Experiment,
    folder: RunFolder,
    result: Result,
    evaluation: Evaluation | None,
    spent: Curve,
    runtime: str,
) -> dict[str, Any]:
    """Write what a finished run has to show; the summary last, for it says that the run is finished."""
    folder.write_point(result.point)
    privacy = _privacy(experiment, result, spent)
    folder.write("privacy.json", to_json(privacy))
    summary = {
        "run_dir": str(folder.path),
        "name": experiment.run.name,
        "runtime": runtime,
        "data": experiment.description,
        "problem": experiment.problem.name,
        "trainer": experiment.trainer.name,
        "seed": experiment.run.seed,
        **figures(experiment, result, evaluation, epsilons(result.privacy, privacy["accountants"])),
    }
    title = f"{experiment.run.name}: {experiment.problem.name}, {experiment.trainer.name}"
    plot_run(folder.path, title, folder.rounds(), privacy["by_round"], _ledgers(folder))
    folder.write("summary.json", to_json(summary))
    return summary


def _ledgers(folder: RunFolder) -> list[float]:
    """What each agent has spent; of none where there is no guarantee, or where too many differ to account for them."""
    spending = Spending.of(folder)
    if spending is None or not spending.is_private or len(spending.local) > MOST_RECORD_COUNTS:
        return []
    return spending.ledgers(spending.participations(folder.rounds()))


def _ledger_curve(result: Result) -> Curve:
    """(t, the largest epsilon of an agent's ledger after t rounds), at the rounds of a curve."""
    taken, curve = np.zeros(len(result.counts), dtype=np.int32), []
    at = set(rounds_of_curve(len(result.history)))
    for t, record in enumerate(result.history, start=1):
        for draw in draws_of([record]):
            taken[draw["sampled"]] += 1
        if t in at:
            most = most_by_size(result.counts, taken)
            released = hardest(repeat(result.local_events[n], times) for n, times in most.items())
            curve.append((t, largest_epsilon(released, result.delta)))
    return curve


def _privacy(experiment: Experiment, result: Result, spent: Curve) -> dict[str, Any]:
    """The privacy record: what was released, both figures, and what every accountant makes of the run."""
    privacy = result.privacy
    delta = experiment.privacy.delta
    out = privacy.to_dict() | {"neighbours": neighbours(privacy.unit, experiment.problem.protects)}
    out["accountants"] = claims(privacy)
    event = result.agent_level_event
    if event is not None:
        epsilon = finite_or_none(best_epsilon(event, delta).epsilon)
        out["agent_level"] = {"epsilon": epsilon, "delta": delta, "event": event.to_dict()}
    private = privacy.is_private
    out["by_round"] = {
        "delta": delta,
        "global": spent if private else [],
        "ledger": _ledger_curve(result) if private else [],
    }
    return out


def claims(privacy: RunPrivacy) -> dict[str, dict[str, Any]]:
    """What every accountant makes of the run, before it, for the agents for whom it is hardest."""
    worst = max(privacy.groups, key=lambda group: group.epsilon_global)
    return by_accountant([global_event(worst.group.local, privacy.rounds)], privacy.delta)


def epsilons(privacy: RunPrivacy, accountants: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of a run's privacy: both guarantees, and what Theorem 4.2 claims, which is none."""
    return {
        "private": privacy.is_private,
        "unit": privacy.unit and str(privacy.unit),
        "epsilon_global": finite_or_none(privacy.epsilon_global),
        "epsilon_ledger_max": finite_or_none(privacy.epsilon_ledger_max),
        "epsilon_theorem_4_2": accountants["theorem-4.2"].get("epsilon"),
    }


def figures(
    experiment: Experiment, result: Result, evaluation: Evaluation | None, epsilons: Mapping[str, Any]
) -> dict[str, Any]:
    """What a run was and what came of it, in numbers; the diagnostics are of the output."""
    trainer, records = result.trainer, int(result.counts.min())
    diagnostics: Mapping[str, Any] = result.history[-1]  # of the last point
    if experiment.run.output == "uniform" and evaluation is not None:
        diagnostics = evaluation(result.point)
    batch, step_size = getattr(trainer, "batch", None), getattr(trainer, "step_size", None)
    down, up = _traffic(experiment, result)
    return {
        "agents": len(experiment.agents),
        "sampled": experiment.sampled,
        "rate": experiment.sampled / len(experiment.agents),
        "rounds": result.rounds,
        "records": int(result.counts.sum()),
        "records_per_agent": records,
        "batch": records if batch == "full" else batch,
        "steps": getattr(trainer, "steps", None),
        "noise": getattr(trainer, "noise", None),
        "noise_unit": getattr(trainer, "noise_unit", None),
        "step_size": None if step_size is None else StepSize.of(step_size).initial,
        "delta": result.delta,
        "epsilon_target": experiment.privacy.epsilon,
        **epsilons,
        **{key: _number(diagnostics.get(key)) for key in ("cost", "excess_risk", "gradient_norm", "distance")},
        "gradient_calls": sum(
            times * trainer.gradient_calls(n)
            for times, n in zip(result.participations.tolist(), result.counts.tolist(), strict=True)
        ),
        "bytes_up": up,
        "bytes_down": down,
        "refused": sum(len(record["refused"]) for record in result.history),
        "seconds": sum(record["seconds"] for record in result.history),
    }


def _number(value: float | None) -> float | None:
    return None if value is None else finite_or_none(value)


def _traffic(experiment: Experiment, result: Result) -> tuple[int, int]:
    """(bytes down, bytes up) that the run takes, or would take, with a client for each agent."""
    names, counts = experiment.agents.names, result.counts.tolist()
    return exchange_sizes(
        experiment.run.name,
        experiment.resolved["problem"],
        experiment.resolved["trainer"],
        experiment.problem.manifold.point_shape,
        (
            (record["round"] - 1, names[agent], counts[agent])
            for record in result.history
            for draw in draws_of([record])
            for agent in draw["sampled"]
        ),
    )


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


def command_to_go_on(folder: RunFolder) -> str:
    """What goes on with a run that was interrupted; a server's run goes on as a server's."""
    if "federation" in read_toml(folder.config):
        return f"pri-rfed server CONFIG --keys KEYS --out {folder.path}"
    return f"pri-rfed resume {folder.path}"


def exceptions(summary: Mapping[str, Any]) -> list[str]:
    """What of this run's own plan takes from its guarantee, in words."""
    said = []
    if summary["runtime"] != "server":
        said.append(
            f"for whoever knows the seed ({summary['seed']}): a rehearsal's noise follows from it, so publish nothing "
            "of private data"
        )
    if summary["delta"] * summary["records"] >= 1:
        said.append(
            f"δ is not below 1/{summary['records']}, one over the records: it may be spent on giving one away whole"
        )
    return said


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
    lines += [f"  except          {exception}" for exception in exceptions(summary)]
    return lines
