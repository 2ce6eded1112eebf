"""An agent's own record, on its own disk, of what it has released about its data, and of the budget its owner allows.

A ledger is one SQLite file. It is kept by the identity that the owner gave to a data set, not by its content: a content
hash is recorded with every charge, only to tell when the data changed. Budgets are set by the owner; a client can
neither create a ledger nor a budget, nor raise one.

Guarantee: a release whose `Ledger.charge` returned is on disk, counted, and everything counted together is
(epsilon, delta)-private, whatever the server asked for and in whatever order. The process may die at any moment: then
at most one release is counted that was never made, and none is made that is not counted. Two processes that charge the
same data set are counted together. The guarantee is the budget, not what is spent of it so far.

What holds against a server that chooses each mechanism after it saw the outputs of the last ones (a composed privacy
loss distribution is not known to) are two rules:

- `Pinned`: the owner fixes the worst local mechanism that is allowed, and the ledger caps the number of releases;
- `Renyi`: any mechanism, as long as the Renyi divergences at one order, fixed in advance, add up to no more than what
  that order converts to the budget (Feldman and Zrnic 2021, fully adaptive composition).

Every entry carries the hash of the one before, and the last hash is kept apart: a file that was damaged or edited is
refused, never repaired or begun anew. This cannot show that the whole file was replaced by an older copy of itself, or
that somebody who knows this format rewrote all of it: the file is as trustworthy as those who may write to it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pri_rfed.privacy.dominance import dominates
from pri_rfed.privacy.events import Event, NonPrivate, Participation, Unit, event_from_dict, repeat

if TYPE_CHECKING:
    import numpy as np

APPLICATION_ID = 0x50526C67
FORMAT_VERSION = 1
MOST_RELEASES = 10**7
"""A pinned mechanism's cap is not looked for above this."""
BUSY_SECONDS = 60.0
"""How long to wait for another process that is writing."""

_SCHEMA = (
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, time TEXT NOT NULL, dataset TEXT NOT NULL, kind TEXT NOT NULL, "
    "body TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TABLE head (entries INTEGER NOT NULL, hash TEXT NOT NULL)",
)
_NO_HASH = "0" * 64


class LedgerError(Exception):
    """The ledger cannot vouch for a release, so it must not be made."""


class BudgetExceeded(LedgerError):
    """The release would pass the owner's budget."""


# Rules ----------------------------------------------------------------------------------------------------------------


class Rule(ABC):
    """How releases are counted, in a currency that adds up whatever the server does."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def unit(self) -> Unit | None:
        """The unit of privacy that the budget speaks of."""

    @abstractmethod
    def limit(self, epsilon: float, delta: float) -> float:
        """How much may be spent in all."""

    @abstractmethod
    def cost(self, event: Event) -> float:
        """What one release spends. Raises LedgerError where the rule does not allow it."""

    @abstractmethod
    def epsilon(self, spent: float, delta: float) -> float:
        """Spending, as an epsilon at `delta`."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Pinned(Rule):
    """Releases of `mechanism`, or of one that it plainly dominates, are counted; the count is capped.

    The cap is the largest number of compositions of `mechanism` that is (epsilon, delta)-private.
    """

    name = "pinned"
    mechanism: Event

    def __post_init__(self) -> None:
        reason = _inadmissible(self.mechanism)
        if reason is not None:
            raise ValueError(f"mechanism: {reason}")

    @property
    def unit(self) -> Unit | None:
        return self.mechanism.unit

    def limit(self, epsilon: float, delta: float) -> float:
        from pri_rfed.privacy.calibration import largest_count

        return float(largest_count(lambda n: repeat(self.mechanism, n), epsilon, delta, MOST_RELEASES))

    def cost(self, event: Event) -> float:
        if not dominates(self.mechanism, event):
            raise LedgerError(
                "the release is not plainly covered by the mechanism that the owner pinned: "
                f"released would be {json.dumps(event.to_dict())}, pinned is {json.dumps(self.mechanism.to_dict())}"
            )
        return 1.0

    def epsilon(self, spent: float, delta: float) -> float:
        from pri_rfed.privacy.accountants import best_epsilon

        return best_epsilon(repeat(self.mechanism, round(spent)), delta).epsilon

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "mechanism": self.mechanism.to_dict()}


@dataclass(frozen=True)
class Renyi(Rule):
    """Releases of any mechanism with a finite Renyi divergence at `order` are charged that divergence.

    order: a whole number >= 2. `Renyi.suited` finds one for mechanisms that behave like Gaussians.
    """

    name = "rdp"
    order: int
    of: Unit = Unit.REPLACE_RECORD

    def __post_init__(self) -> None:
        if isinstance(self.order, bool) or not isinstance(self.order, int) or self.order < 2:
            raise ValueError(f"order = {self.order!r} must be a whole number >= 2")

    @classmethod
    def suited(cls, epsilon: float, delta: float, of: Unit = Unit.REPLACE_RECORD) -> Renyi:
        """The order at which the most Gaussian releases fit into (epsilon, delta)."""
        from pri_rfed.privacy.accountants import ORDERS

        return cls(int(max(ORDERS, key=lambda order: cls._limit(order, epsilon, delta) / order)), of)

    @staticmethod
    def _limit(order: float, epsilon: float, delta: float) -> float:
        """The divergence that converts to (epsilon, delta) at this order (Balle et al. 2020, Theorem 21)."""
        return epsilon - math.log1p(-1 / order) + (math.log(delta) + math.log(order)) / (order - 1)

    @property
    def unit(self) -> Unit:
        return self.of

    def limit(self, epsilon: float, delta: float) -> float:
        # A little less, so that rounding in the sum of what is spent never goes beyond it.
        return max(0.0, self._limit(self.order, epsilon, delta) * (1 - 1e-12))

    def cost(self, event: Event) -> float:
        import numpy as np

        from pri_rfed.privacy.accountants import UnsupportedEvent, rdp_curve

        if event.unit not in (None, self.of):
            raise LedgerError(f"the release is of unit {event.unit}, the budget of {self.of}; they never mix")
        try:
            cost = float(rdp_curve(event, np.array([float(self.order)]))[0])
        except UnsupportedEvent as error:
            raise LedgerError(f"the release cannot be charged at a Renyi order: {error}") from error
        if not math.isfinite(cost):
            raise LedgerError(f"the release has no finite Renyi divergence at order {self.order}")
        return cost

    def epsilon(self, spent: float, delta: float) -> float:
        import numpy as np

        from pri_rfed.privacy.accountants import rdp_to_epsilon

        if spent == 0:
            return 0.0
        return float(rdp_to_epsilon(np.array([spent]), np.array([float(self.order)]), delta)[0])

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "order": self.order, "of": str(self.of)}


def _rule_from_dict(data: dict[str, Any]) -> Rule:
    if data["name"] == Pinned.name:
        return Pinned(event_from_dict(data["mechanism"]))
    if data["name"] == Renyi.name:
        return Renyi(data["order"], Unit(data["of"]))
    raise ValueError(f"unknown rule {data['name']!r}")


def _inadmissible(event: Event) -> str | None:
    """Why a ledger cannot hold this event, if it cannot."""
    if isinstance(event, NonPrivate):
        return f"{event.what} has no mechanism: its epsilon is infinite"
    if isinstance(event, Participation):
        return "a ledger counts the rounds that its agent took part in; it takes no credit for being drawn at random"
    return next((reason for part in event.parts if (reason := _inadmissible(part)) is not None), None)


# What a ledger says ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budget:
    """What the owner of a data set allows in all."""

    epsilon: float
    delta: float
    rule: Rule
    limit: float
    """The same in the rule's own currency."""


@dataclass(frozen=True)
class Entry:
    """One line of the history: a budget that was set, or a charge."""

    number: int
    time: str
    dataset: str
    kind: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Status:
    """Where a data set stands."""

    dataset: str
    budget: Budget
    releases: int
    spent: float
    """In the rule's currency."""
    history: tuple[Entry, ...]
    content_changed: bool = False
    """Whether the content hash now given differs from the last one recorded: a warning, no more."""

    @property
    def protects(self) -> dict[str, int]:
        """Which parts of a record alone were protected, and in how many of the releases; of the others all of it."""
        return Counter(entry.body["protects"] for entry in self.history if entry.body.get("protects"))

    @property
    def remaining(self) -> float:
        """What is left, in the rule's currency."""
        return max(0.0, self.budget.limit - self.spent)

    @property
    def epsilon_spent(self) -> float:
        """Epsilon of the releases so far. What is guaranteed is the budget."""
        return self.budget.rule.epsilon(self.spent, self.budget.delta)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        budget, rule = self.budget, self.budget.rule
        return {
            "dataset": self.dataset,
            "unit": rule.unit and str(rule.unit),
            "protects": self.protects,
            "budget": {"epsilon": budget.epsilon, "delta": budget.delta, "rule": rule.to_dict(), "limit": budget.limit},
            "releases": self.releases,
            "spent": {"epsilon": self.epsilon_spent, "of_limit": self.spent},
            "remaining": {"of_limit": self.remaining},
            "history": [
                {"number": e.number, "time": e.time, "kind": e.kind, **e.body} for e in self.history
            ],
        }


def content_hash(records: np.ndarray[Any, Any]) -> str:
    """A hash of records as they are. It never leaves the agent: a guess of the data could be checked against it."""
    import numpy as np

    values = np.ascontiguousarray(records)
    digest = hashlib.sha256(f"{values.dtype.str} {values.shape}".encode())
    digest.update(values.tobytes())
    return digest.hexdigest()


# The file -------------------------------------------------------------------------------------------------------------


class Ledger:
    """The ledger in a file. It holds no state of its own: every call reads and checks the whole file."""

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Ledger:
        """The existing ledger in `path`, checked from the first entry to the last. Raises LedgerError."""
        ledger = cls(Path(path))
        with ledger._transaction(write=False):
            pass
        return ledger

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> Ledger:
        """A new, empty ledger: an act of the owner. Raises LedgerError if there is a file already."""
        path = Path(path)
        try:
            # Made complete under another name, then given its own, so that there never is half a ledger.
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            os.close(handle)
            try:
                with closing(_connect(Path(name))) as connection:
                    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
                    connection.execute("BEGIN EXCLUSIVE")
                    for statement in _SCHEMA:
                        connection.execute(statement)
                    connection.execute("INSERT INTO head VALUES (0, ?)", (_NO_HASH,))
                    connection.execute("COMMIT")
                _sync(Path(name))
                os.link(name, path)
            finally:
                os.unlink(name)
            _sync(path.parent)
        except FileExistsError:
            raise LedgerError(f"{path}: there is a file already; a ledger is never begun anew") from None
        except (OSError, sqlite3.Error) as error:
            raise LedgerError(f"{path}: cannot create a ledger: {error}") from error
        return cls.open(path)

    def datasets(self) -> list[str]:
        """The identities of all data sets with a budget."""
        with self._transaction(write=False) as (_, entries):
            return sorted({entry.dataset for entry in entries})

    def set_budget(self, dataset: str, epsilon: float, delta: float, rule: Rule) -> Status:
        """Set, raise or lower the budget of a data set: an act of the owner, kept in the history.

        A budget below what is spent is allowed: then every further release is refused. The rule itself must be fixed
        before the first release, or it is no filter.

        Raises ValueError for a bad target, and for one that allows no release at all before there was any; LedgerError
        where the rule would change after a release.
        """
        if not dataset or not dataset.isprintable() or dataset != dataset.strip():
            raise ValueError(f"dataset = {dataset!r} must be a printable name without blanks around it")
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise ValueError(f"epsilon = {epsilon!r} must be a positive finite number")
        if not 0 < delta < 1:
            raise ValueError(f"delta = {delta!r} must lie strictly between 0 and 1")
        limit = rule.limit(epsilon, delta)
        body = {"epsilon": epsilon, "delta": delta, "rule": rule.to_dict(), "limit": limit}
        with self._transaction(write=True) as (connection, entries):
            before = _status(entries, dataset) if any(entry.dataset == dataset for entry in entries) else None
            if before is None or not before.releases:
                if limit == 0:
                    raise ValueError(
                        f"epsilon = {epsilon:g} at delta = {delta:g} does not allow a single release under the rule "
                        f"{json.dumps(rule.to_dict())}"
                    )
            elif before.budget.rule != rule:
                raise LedgerError(
                    f"data set {dataset!r}: {before.releases} releases are counted under the rule "
                    f"{json.dumps(before.budget.rule.to_dict())}; a rule is fixed before the first release, only "
                    "epsilon and delta can be changed after it"
                )
            return _status([*entries, _append(connection, entries, dataset, "budget", body)], dataset)

    def status(self, dataset: str) -> Status:
        """Where the data set stands. Raises LedgerError if it has no budget here."""
        with self._transaction(write=False) as (_, entries):
            return _status(entries, dataset)

    def check(self, dataset: str, event: Event, content: str | None = None) -> Status:
        """Whether `event` could be charged now: before a training, so that none is done in vain.

        Raises BudgetExceeded if it would pass the budget, LedgerError if it is not allowed or the ledger is not sound.
        """
        with self._transaction(write=False) as (_, entries):
            return _afford(entries, dataset, event, content)[0]

    def charge(
        self, dataset: str, event: Event, label: str, content: str | None = None, protects: str = ""
    ) -> Status:
        """Count the release that `event` describes. Only when this has returned may the release leave the process.

        label: which release it is, such as the run and the round. content: `content_hash` of the records. protects:
        which part of a record alone the event is about, as `Problem.protects`; "" for all of it.

        Returns the status with this release. Raises as `check` does; then nothing is counted and nothing may leave.
        """
        with self._transaction(write=True) as (connection, entries):
            before, cost = _afford(entries, dataset, event, content)
            body = {"label": label, "event": event.to_dict(), "cost": cost, "content": content}
            body |= {"protects": protects} if protects else {}
            after = _status([*entries, _append(connection, entries, dataset, "charge", body)], dataset)
        return replace(after, content_changed=before.content_changed)

    @contextmanager
    def _transaction(self, write: bool) -> Iterator[tuple[sqlite3.Connection, list[Entry]]]:
        """A transaction on the checked file, and its entries; on disk when it ends, undone if anything goes wrong."""
        if not self.path.is_file():
            raise LedgerError(
                f"{self.path}: there is no ledger; the owner of the data makes one with `pri-rfed ledger set-budget`"
            )
        try:
            with closing(_connect(self.path)) as connection:
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                try:
                    yield connection, _checked_entries(connection)
                    connection.execute("COMMIT")
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise LedgerError(f"{self.path}: {error}; nothing may be released") from error
        except LedgerError as error:
            raise type(error)(f"{self.path}: {error}") from error


def _connect(path: Path) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_SECONDS)
    try:
        # A rollback journal, deleted to commit: EXTRA also syncs the folder after that.
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA fullfsync = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _value(connection: sqlite3.Connection, query: str) -> Any:
    row = connection.execute(query).fetchone()
    return row and row[0]


def _hash(before: str, number: int, time: str, dataset: str, kind: str, body: str) -> str:
    return hashlib.sha256(json.dumps([before, number, time, dataset, kind, body]).encode()).hexdigest()


_DAMAGED = "is damaged or was edited; restore it from a backup that counts no fewer releases"


def _checked_entries(connection: sqlite3.Connection) -> list[Entry]:
    """All entries. Raises LedgerError unless this is a sound ledger of this format, every hash of it right."""
    if _value(connection, "PRAGMA application_id") != APPLICATION_ID:
        raise LedgerError("is not a ledger")
    if (version := _value(connection, "PRAGMA user_version")) != FORMAT_VERSION:
        raise LedgerError(f"is a ledger of format {version}; this project reads {FORMAT_VERSION}")
    if (said := _value(connection, "PRAGMA integrity_check")) != "ok":
        raise LedgerError(f"{_DAMAGED} ({' '.join(str(said).split())})")
    if {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master")} != set(_SCHEMA):
        raise LedgerError(f"{_DAMAGED} (its tables are not those of a ledger)")
    rows = connection.execute("SELECT number, time, dataset, kind, body, hash FROM entries ORDER BY number").fetchall()
    heads = connection.execute("SELECT entries, hash FROM head").fetchall()
    before, entries = _NO_HASH, []
    for expected, (number, *texts, digest) in enumerate(rows, start=1):
        strange = number != expected or not all(isinstance(text, str) for text in texts)
        if strange or digest != _hash(before, number, *texts):
            raise LedgerError(f"{_DAMAGED} (entry {expected} is missing or altered)")
        before = digest
        time, dataset, kind, body = texts
        entries.append(Entry(number, time, dataset, kind, json.loads(body)))
    if heads != [(len(rows), before)]:
        raise LedgerError(f"{_DAMAGED} (its last entries are missing, or were added by hand)")
    return entries


def _append(
    connection: sqlite3.Connection, entries: list[Entry], dataset: str, kind: str, body: dict[str, Any]
) -> Entry:
    number, time = len(entries) + 1, datetime.now(UTC).isoformat(timespec="seconds")
    text = json.dumps(body, sort_keys=True)
    digest = _hash(_value(connection, "SELECT hash FROM head"), number, time, dataset, kind, text)
    connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", (number, time, dataset, kind, text, digest))
    connection.execute("UPDATE head SET entries = ?, hash = ?", (number, digest))
    return Entry(number, time, dataset, kind, body)


def _status(entries: list[Entry], dataset: str, content: str | None = None) -> Status:
    history = tuple(entry for entry in entries if entry.dataset == dataset)
    budgets = [entry.body for entry in history if entry.kind == "budget"]
    charges = [entry.body for entry in history if entry.kind == "charge"]
    if not budgets:
        known = ", ".join(sorted({repr(entry.dataset) for entry in entries})) or "none"
        raise LedgerError(
            f"data set {dataset!r} has no budget here (known: {known}); its owner sets one with "
            "`pri-rfed ledger set-budget`"
        )
    last = budgets[-1]
    budget = Budget(last["epsilon"], last["delta"], _rule_from_dict(last["rule"]), last["limit"])
    recorded = [charge["content"] for charge in charges if charge["content"] is not None]
    changed = content is not None and bool(recorded) and recorded[-1] != content
    return Status(dataset, budget, len(charges), math.fsum(charge["cost"] for charge in charges), history, changed)


def _afford(entries: list[Entry], dataset: str, event: Event, content: str | None) -> tuple[Status, float]:
    """The status and what the event costs, if it is allowed and fits."""
    status = _status(entries, dataset, content)
    reason = _inadmissible(event)
    if reason is not None:
        raise LedgerError(f"data set {dataset!r}: {reason}")
    budget = status.budget
    cost = budget.rule.cost(event)
    if status.spent + cost > budget.limit:
        raise BudgetExceeded(
            f"data set {dataset!r}: one more release would pass the owner's budget of epsilon = {budget.epsilon:g} at "
            f"delta = {budget.delta:g}; {status.releases} releases are counted, {status.spent:.6g} of "
            f"{budget.limit:.6g} is spent, this one costs {cost:.6g}"
        )
    return status, cost
