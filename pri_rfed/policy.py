"""What the owner of a data set allows to be done with it: a small TOML file beside the data. No server can change it.

    agent = "ward-3"              # the name under which the server has registered it
    dataset = "ward-3/2026"       # the identity that the budget belongs to, whatever runs there will be
    data = "records.npy"          # the records, [n, *record_shape]; or an .npz file that holds them as `records`
    ledger = "ward-3.ledger"      # where what was spent is written down; made with `pri-rfed ledger set-budget`
    trainers = ["dp-rsgd"]        # the trainings that may run
    least_noise = 0.5             # every release has noise of at least so many times its sensitivity (for an
                                  # epsilon-private one 1/epsilon is what counts)
    most_records = 2000           # the most per-record gradients that one round may evaluate
    precision = "float64"         # or "float32": hold the records in half the memory, rounded (`pri_rfed.AgentArrays`)

    [budget]                      # for all runs together; the ledger must hold the same
    epsilon = 2.0
    delta = 1e-5

    [[problems]]                  # the problems that may be worked on, each as in a run's configuration
    name = "principal-eigenvector"

A section [test] with `seed` and `stream` replaces the operating system's entropy by a stream that others can know: for
tests and for runs on one machine, never for data that matter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pri_rfed.data.agents import Precision
from pri_rfed.experiment.config import read_toml
from pri_rfed.training import TRAINERS

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\w./-]+$")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OwnBudget(_Table):
    """(epsilon, delta) that all runs together may spend."""

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]


class FixedSeed(_Table):
    """A seed in place of the operating system's entropy; stream: the number that stands for this agent in it."""

    seed: Annotated[int, Field(ge=0)]
    stream: Annotated[int, Field(ge=0)]


class Policy(_Table):
    """See the module's text."""

    agent: Name
    dataset: Name
    data: Path
    ledger: Path
    trainers: Annotated[list[str], Field(min_length=1)]
    least_noise: Positive
    most_records: Annotated[int, Field(ge=1)]
    precision: Precision = "float64"
    budget: OwnBudget
    problems: Annotated[list[dict[str, Any]], Field(min_length=1)]
    test: FixedSeed | None = None


def load_policy(path: Path) -> Policy:
    """The policy in a TOML file; its paths are relative to it.

    Raises ValueError with everything that is wrong.
    """
    table = read_toml(path)
    try:
        policy = Policy.model_validate(table)
    except ValidationError as error:
        lines = [f"{path}: {'.'.join(map(str, part['loc'])) or 'policy'}: {part['msg']}" for part in error.errors()]
        raise ValueError("\n".join(lines)) from None
    unknown = [name for name in policy.trainers if name not in TRAINERS]
    if unknown:
        raise ValueError(f"{path}: trainers: {unknown[0]!r} is unknown; known are {', '.join(TRAINERS)}")
    here = path.parent
    return policy.model_copy(update={"data": here / policy.data, "ledger": here / policy.ledger})


def load_policies(path: Path) -> list[Policy]:
    """The policy in a file, or those in all .toml files of a folder, by name.

    Raises ValueError if there is none, or two are for the same agent or share a ledger.
    """
    files = sorted(path.glob("*.toml")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path}: the folder holds no policy (a file that ends in .toml)")
    policies = [load_policy(file) for file in files]
    for what in ("agent", "ledger"):
        values = [getattr(policy, what) for policy in policies]
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise ValueError(f"{path}: {what} = {str(twice)!r} stands in two policies; each agent has its own")
    return policies
