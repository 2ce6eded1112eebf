"""`pri-rfed audit`: attack the trainers, and hold a lower bound on epsilon against what the accountants claim."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pri_rfed.commands.data import DataDir
from pri_rfed.commands.plan import DELTA, Delta, PlanFlags, load_config

if TYPE_CHECKING:
    from pri_rfed.aggregation import Aggregation
    from pri_rfed.manifolds import Manifold
    from pri_rfed.privacy.audit import Attack, Audit
    from pri_rfed.problems import Problem
    from pri_rfed.training import Trainer

ATTACKS = ("worst-case", "turning", "canary", "agents", "theorem-4.2")

TRAINER_DEFAULTS: dict[str, dict[str, Any]] = {
    "dp-rsgd": {"clip": 1.0, "noise": 2.5, "noise_unit": "sensitivity", "step_size": 1e-3},
    # The attack on the inner steps ("turning") has the most to find where the full gradient costs little.
    "dp-rsvrg": {
        "inner_steps": 6, "batch": "full", "clip_full": 0.01, "clip_step": 1.0, "alpha": 0.9, "noise": 6.0,
        "noise_unit": "sensitivity", "step_size": 1e-3,
    },
    "riemannian-laplace": {"epsilon": 1.0},
    "kng": {"epsilon": 1.0},
}  # fmt: skip
"""What is audited without a configuration, where --set says nothing else."""
RADIUS = 0.3
"""Without a configuration, canaries lie at the ends of a ball of this radius."""


@dataclass(frozen=True)
class _Subject:
    """What is to be audited. problem: None for worst-case gradients, which need only the manifold."""

    trainer: Trainer
    manifold: Manifold
    problem: Problem | None
    records: int
    aggregation: Aggregation
    sampled: int
    pool: int
    delta: float


def audit(
    config: Annotated[
        Path | None, typer.Argument(help="Audit the training, or the aggregation, of this configuration.")
    ] = None,
    attack: Annotated[
        str,
        typer.Option(
            help="worst-case: gradients as far apart as clipping allows. turning: the same, reversed away from the "
            "start, against variance reduction. canary: real records of CONFIG's problem; without CONFIG, points whose "
            "Fréchet mean is sought. agents: a whole agent's data, against agent-level aggregation. theorem-4.2: a "
            "round of 1 out of 2 agents, against that theorem."
        ),
    ] = "worst-case",
    trainer: Annotated[str, typer.Option(help="Without CONFIG: the trainer.")] = "dp-rsgd",
    manifold: Annotated[
        str, typer.Option(help="Without CONFIG: NAME:SIZE[,SIZE]; factors of a product are joined by +.")
    ] = "sphere:3",
    records: Annotated[
        int | None, typer.Option(help="How many records the agent holds. Default: CONFIG's fewest, or 8.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY.SUB=VALUE",
            help="Override an entry of CONFIG, or remove it: KEY.SUB= and no value. Without CONFIG: trainer.KEY=VALUE "
            "or aggregation.KEY=VALUE. Repeatable.",
        ),
    ] = None,
    repetitions: Annotated[int, typer.Option(help="How many releases about either data set.")] = 20_000,
    confidence: Annotated[float, typer.Option(help="With which probability all that is shown holds.")] = 0.99,
    delta: Delta = None,
    seed: Annotated[int, typer.Option(help="Of the whole audit.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Attack a training many times, and compare a lower bound on epsilon with what the accountants claim.

    Exit code 1: the claim is refuted. Exit code 0 proves nothing: there may be a better attack.
    """
    if attack not in ATTACKS:
        raise ValueError(f"--attack {attack}: unknown; known are {', '.join(ATTACKS)}")
    for option, value, least in (("--records", records, 1), ("--seed", seed, 0)):
        if value is not None and value < least:
            raise ValueError(f"{option} {value}: must be at least {least}")
    with _interruptible():
        from rich.console import Console
        from rich.progress import Progress

        from pri_rfed.privacy.audit import audit as run_audit

        subject = (
            _from_flags(trainer, manifold, records, assignments, one_step=attack == "theorem-4.2")
            if config is None
            else _from_config(config, records, assignments, data_dir)
        )
        chosen = _attack(attack, subject, seed)
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task(chosen.target, total=None)
            result = run_audit(
                chosen,
                repetitions=repetitions,
                delta=subject.delta if delta is None else delta,
                confidence=confidence,
                seed=seed,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    if json_:
        typer.echo(json.dumps(result.to_dict(), indent=2))
    else:
        _show(result)
    if result.evidence.refuted:
        raise typer.Exit(1)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends with a message and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        print("\ninterrupted; an audit keeps nothing, the same command starts again", file=sys.stderr)
        raise typer.Exit(130) from None


def _from_flags(
    trainer: str, manifold: str, records: int | None, settings: list[str] | None, one_step: bool
) -> _Subject:
    from pri_rfed.aggregation import AgentLevelMean
    from pri_rfed.experiment.config import ConfigError, override
    from pri_rfed.experiment.options import build, suggestion
    from pri_rfed.training import TRAINERS

    if trainer not in TRAINERS:
        raise ValueError(f"--trainer {trainer}: unknown; {suggestion(trainer, TRAINERS)}")
    tables = {
        "trainer": TRAINER_DEFAULTS.get(trainer, {}) | ({} if one_step or trainer != "dp-rsgd" else {"steps": 5}),
        "aggregation": {"clip": 0.1, "noise_multiplier": 1.0},
    }
    tables = override(tables, settings or [])
    errors = [f"--set {key}: without CONFIG, the sections are trainer and aggregation" for key in list(tables)[2:]]
    training = build("trainer", TRAINERS[trainer], tables["trainer"])
    aggregation = build("aggregation", AgentLevelMean, tables["aggregation"])
    errors += training.errors + aggregation.errors
    if errors:
        raise ConfigError(errors)
    assert training.value and aggregation.value
    return _Subject(training.value, _manifold(manifold), None, records or 8, aggregation.value, 2, 4, DELTA)


def _from_config(config: Path, records: int | None, settings: list[str] | None, data_dir: Path | None) -> _Subject:
    experiment = load_config(config, PlanFlags(), settings, data_dir)
    return _Subject(
        experiment.trainer,
        experiment.problem.manifold,
        experiment.problem,
        records or int(experiment.agents.counts.min()),
        experiment.aggregation,
        experiment.sampled,
        len(experiment.agents),
        experiment.privacy.delta,
    )


def _manifold(text: str) -> Manifold:
    """'sphere:3', 'grassmann:4,2', 'sphere:3+euclidean:2'."""
    from pri_rfed.experiment.options import suggestion
    from pri_rfed.manifolds import MANIFOLDS, Product

    factors = []
    for part in text.split("+"):
        name, _, sizes = part.partition(":")
        if name not in MANIFOLDS or name == Product.name:
            raise ValueError(f"--manifold {text}: {name!r} is unknown; {suggestion(name, MANIFOLDS)}")
        try:
            factors.append(MANIFOLDS[name](*(int(size) for size in sizes.split(","))))
        except (TypeError, ValueError) as error:
            raise ValueError(f"--manifold {text}: {name} needs its size, as in {name}:3 or :4,2; {error}") from None
    return factors[0] if len(factors) == 1 else Product(factors)


def _attack(name: str, subject: _Subject, seed: int) -> Attack:
    from pri_rfed.aggregation import AgentLevelMean
    from pri_rfed.privacy import audit as attacks
    from pri_rfed.problems import FrechetMean
    from pri_rfed.problems.clipping import ClippedGradient
    from pri_rfed.randomness import Role, stream
    from pri_rfed.training import DPRSGD

    if name == "agents":
        if not isinstance(subject.aggregation, AgentLevelMean):
            raise ValueError(
                f"--attack agents: aggregation = {subject.aggregation.name!r} makes no promise about whole agents; "
                f"{AgentLevelMean.name!r} does"
            )
        return attacks.AgentAttack(subject.aggregation, subject.manifold, subject.sampled, subject.pool)
    if name == "theorem-4.2":
        if not isinstance(subject.trainer, DPRSGD):
            raise ValueError(f"--attack theorem-4.2: trainer = {subject.trainer.name!r} must be {DPRSGD.name!r}")
        return attacks.ParticipationAttack(subject.trainer, subject.manifold, subject.records, ("theorem-4.2",))
    if name == "canary":
        problem = subject.problem
        if problem is None:
            center = subject.manifold.random_point(stream(seed, Role.START))
            problem = FrechetMean(subject.manifold, center, RADIUS)
        return attacks.canary(subject.trainer, problem, subject.records, seed)
    bound = None if subject.problem is None else ClippedGradient(subject.problem, None).difference_bound / 2
    return attacks.worst_case(
        subject.trainer,
        subject.manifold,
        subject.records,
        seed,
        bound=bound if bound is not None and math.isfinite(bound) else None,
        turning=name == "turning",
    )


def _show(result: Audit) -> None:
    from rich.console import Console
    from rich.table import Table

    found, console = result.evidence, Console(highlight=False, soft_wrap=True)
    claimed = found.claimed
    console.print(f"{result.attack.target}, attack: {result.attack.name}")
    if result.unit is not None:
        console.print(f"unit {result.unit}: {result.neighbours}")
    console.print(f"{found.samples} releases about either data set; confidence {found.confidence:g}")
    table = Table("figure", "epsilon", "of the claim", box=None, pad_edge=False)
    table.columns[1].justify = table.columns[2].justify = "right"
    table.add_row(f"claimed at delta = {found.delta:g} ({claimed.accountant})", f"{claimed.epsilon:.4f}", "")
    bounds = {"at least (Clopper-Pearson)": found.clopper_pearson}
    if found.gaussian is not None:
        bounds["at least (if its trade-off is Gaussian)"] = found.gaussian
    for name, bound in bounds.items():
        table.add_row(name, f"{bound:.4f}", f"{bound / claimed.epsilon:.2f}" if claimed.epsilon > 0 else "")
    console.print(table)
    if found.witness.refutes:
        console.print(
            f"at epsilon = {found.witness.epsilon:.4f} delta is at least {found.witness.delta:.3g}, "
            f"where {found.witness.claimed:.3g} is claimed"
        )
    console.print("verdict: the claim is REFUTED" if found.refuted else "verdict: not refuted")
