"""`pri-rfed ledger`: an owner's budgets, and what was spent of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pri_rfed.commands.plan import (
    Alpha,
    Assignments,
    BatchOption,
    Clip,
    Epochs,
    Noise,
    NoiseUnit,
    PlanFlags,
    RecordCount,
    Steps,
    TrainerName,
    plan_from_flags,
)

if TYPE_CHECKING:
    from pri_rfed.privacy.events import Event
    from pri_rfed.privacy.ledger import Budget, Rule, Status

RULES = ("pinned", "rdp")

app = typer.Typer(help="Set the budget of a data set of your own, and see what was spent of it.", no_args_is_help=True)

LedgerFile = Annotated[Path, typer.Option("--ledger", help="The ledger, a file of the data's owner.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("show")
def show(
    ledger: LedgerFile,
    dataset: Annotated[str | None, typer.Option(help="The data set's identity. Default: all of the ledger.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a ledger from its first entry to its last, and print budgets, spending, what remains and the history."""
    with _refusals():
        from pri_rfed.privacy.ledger import Ledger

        opened = Ledger.open(ledger)
        statuses = [opened.status(name) for name in (opened.datasets() if dataset is None else [dataset])]
        if as_json:
            typer.echo(json.dumps({"ledger": str(ledger), "datasets": [status.to_dict() for status in statuses]}))
            return
        if not statuses:
            typer.echo(f"{ledger}: no budget has been set")
        for status in statuses:
            _tell(status)


@app.command("set-budget")
def set_budget(
    ledger: LedgerFile,
    dataset: Annotated[
        str, typer.Option(help="The identity you give the data set; it stays the same when records change.")
    ],
    epsilon: Annotated[float, typer.Option(help="epsilon of everything that is ever released about the data set.")],
    delta: Annotated[float | None, typer.Option(help="delta of the same. Default: as before, or 1e-5.")] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help="pinned: one kind of local training (flags below, or --event), its number capped. rdp: any training, "
            "charged at one Renyi order. Fixed by the first release. Default: as before, or rdp."
        ),
    ] = None,
    order: Annotated[
        int | None, typer.Option(help="With rdp: the order. Default: the one that suits Gaussian releases.")
    ] = None,
    event: Annotated[
        Path | None, typer.Option(help="With pinned: a JSON file with the event of the worst local training allowed.")
    ] = None,
    records: RecordCount = None,
    batch: BatchOption = None,
    steps: Steps = None,
    clip: Clip = None,
    noise: Noise = None,
    noise_unit: NoiseUnit = None,
    trainer: TrainerName = None,
    epochs: Epochs = None,
    alpha: Alpha = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Set, raise or lower the budget of a data set. Only its owner does this; it is kept in the history.

    Makes the ledger where there is no such file. What was spent stays spent.
    """
    with _refusals():
        from pri_rfed.privacy.ledger import Ledger

        flags = PlanFlags(None, None, None, records, batch, steps, clip, noise, noise_unit, trainer, epochs, alpha)
        opened = Ledger.open(ledger) if ledger.exists() else None
        held = opened.datasets() if opened else []
        before = opened.status(dataset).budget if opened and dataset in held else None
        if delta is None:
            delta = before.delta if before else 1e-5
        chosen = _rule(rule, order, event, flags, assignments, epsilon, delta, before)
        status = (opened or Ledger.create(ledger)).set_budget(dataset, epsilon, delta, chosen)
        if held and before is None:
            typer.echo(
                f"note: {dataset} is a new data set, beside {', '.join(held)}; for the same records under another name "
                "nothing that was spent would count",
                err=True,
            )
        if as_json:
            typer.echo(json.dumps(status.to_dict()))
        else:
            _tell(status)


def _rule(
    name: str | None,
    order: int | None,
    event: Path | None,
    flags: PlanFlags,
    assignments: list[str] | None,
    epsilon: float,
    delta: float,
    before: Budget | None,
) -> Rule:
    from pri_rfed.privacy.ledger import Pinned, Renyi

    if name not in (None, *RULES):
        raise ValueError(f"--rule {name}: must be {' or '.join(RULES)}")
    if not 0 < epsilon < float("inf"):
        raise ValueError(f"--epsilon {epsilon:g}: must be a positive finite number")
    if not 0 < delta < 1:
        raise ValueError(f"--delta {delta:g}: must lie strictly between 0 and 1")
    pinning = ["--event"] * (event is not None) + flags.given() + ["--set"] * bool(assignments)
    if name != "pinned" and pinning:
        raise ValueError("\n".join(f"{flag}: describes a mechanism, which takes --rule pinned" for flag in pinning))
    if order is not None and name != "rdp":
        raise ValueError("--order: takes --rule rdp")
    if name == "pinned":
        if event is not None and len(pinning) > 1:
            raise ValueError("--event: says all there is to say of a mechanism; leave out the other flags")
        return Pinned(_mechanism(event, flags, assignments))
    if name == "rdp" and order is not None:
        return Renyi(order)
    if before is not None and (name is None or isinstance(before.rule, Renyi)):
        return before.rule
    return Renyi.suited(epsilon, delta)


def _mechanism(event: Path | None, flags: PlanFlags, assignments: list[str] | None) -> Event:
    from dataclasses import replace

    from pri_rfed.privacy.events import loads

    if event is None:
        plan = plan_from_flags(replace(flags, agents=1, rounds=1), None, assignments)
        return plan.trainer.event(plan.problem, plan.counts[0])
    try:
        return loads(event.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"--event {event}: {error}") from error


@contextmanager
def _refusals() -> Iterator[None]:
    """What a ledger refuses is one line on stderr, with exit code 1."""
    from pri_rfed.privacy.ledger import LedgerError

    try:
        yield
    except LedgerError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


def _tell(status: Status) -> None:
    from rich.console import Console
    from rich.table import Table

    from pri_rfed.privacy.report import UNIT_IN_WORDS

    console = Console(highlight=False, soft_wrap=True)
    budget, unit = status.budget, status.budget.rule.unit
    console.print(f"data set {status.dataset}", markup=False)
    if unit is not None:
        console.print(f"  unit       {unit}: {UNIT_IN_WORDS[unit]}")
    for protects, releases in status.protects.items():
        of = "all releases" if releases == status.releases else f"{releases} of {status.releases} releases"
        console.print(f"  but        {of}: {protects}", markup=False)
    console.print(f"  budget     ε = {budget.epsilon:g} at δ = {budget.delta:g}: what is guaranteed")
    console.print(f"  rule       {_rule_in_words(budget)}")
    console.print(f"  spent      ε = {status.epsilon_spent:.4g} by {status.releases} releases")
    console.print(f"  remaining  {_remaining(status)}")
    table = Table("", "when", "what", "", box=None, pad_edge=False)
    for entry in status.history:
        table.add_row(str(entry.number), entry.time, entry.kind, _entry(entry.body))
    console.print(table, markup=False)


def _rule_in_words(budget: Budget) -> str:
    from pri_rfed.privacy.ledger import Renyi

    if isinstance(budget.rule, Renyi):
        return f"any mechanism, its Renyi divergence at order {budget.rule.order} charged, {budget.limit:.6g} in all"
    mechanism = json.dumps(budget.rule.to_dict()["mechanism"])
    return f"{budget.limit:.0f} releases of {mechanism}, or of what it plainly dominates"


def _remaining(status: Status) -> str:
    from pri_rfed.privacy.ledger import Renyi

    if isinstance(status.budget.rule, Renyi):
        return f"{status.remaining:.6g} of {status.budget.limit:.6g}"
    return f"{status.remaining:.0f} releases"


def _entry(body: dict[str, Any]) -> str:
    if "label" in body:
        return f"{body['label']}, cost {body['cost']:.6g}"
    return f"ε = {body['epsilon']:g} at δ = {body['delta']:g}, rule {body['rule']['name']}"
