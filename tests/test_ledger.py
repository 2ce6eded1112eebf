"""The ledger: what is counted, what is refused, and that no crash, race or damage makes it forget."""

import math
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from pri_rfed.privacy.accountants import best_epsilon
from pri_rfed.privacy.events import (
    Approximate,
    Gaussian,
    NonPrivate,
    Participation,
    PoissonSampled,
    Pure,
    Repeated,
    SampledWithoutReplacement,
    Unit,
    compose,
)
from pri_rfed.privacy.ledger import BudgetExceeded, Ledger, LedgerError, Pinned, Renyi, content_hash

STEP = SampledWithoutReplacement(Gaussian(0.5, 1.0), 10, 100)
LOCAL = Repeated(STEP, 20)
EPSILON, DELTA = 4.0, 1e-5


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path):
    """A pinned local training, of which a few fit."""
    ledger = Ledger.create(path)
    ledger.set_budget("hospital", EPSILON, DELTA, Pinned(LOCAL))
    return ledger


def charge_until_refused(ledger, dataset, event, most=10_000):
    for count in range(most):
        try:
            ledger.charge(dataset, event, f"run/{count}")
        except BudgetExceeded:
            return count
    raise AssertionError("never refused")


# Counting -------------------------------------------------------------------------------------------------------------


def test_as_many_releases_as_the_budget_holds_and_no_more(ledger):
    """The cap is where the composed epsilon passes the budget: an uncounted release would show."""
    made = charge_until_refused(ledger, "hospital", LOCAL)
    assert best_epsilon(Repeated(LOCAL, made), DELTA).epsilon <= EPSILON
    assert best_epsilon(Repeated(LOCAL, made + 1), DELTA).epsilon > EPSILON
    status = ledger.status("hospital")
    assert (status.releases, status.remaining) == (made, 0)
    assert status.epsilon_spent == best_epsilon(Repeated(LOCAL, made), DELTA).epsilon
    with pytest.raises(BudgetExceeded, match=r"epsilon = 4 at delta = 1e-05"):
        ledger.check("hospital", LOCAL)
    assert ledger.status("hospital").releases == made


def test_every_release_counts(ledger):
    for count in range(3):
        assert ledger.status("hospital").releases == count
        ledger.check("hospital", LOCAL)
        assert ledger.charge("hospital", LOCAL, f"run/{count}").releases == count + 1
    labels = [entry.body["label"] for entry in ledger.status("hospital").history if entry.kind == "charge"]
    assert labels == ["run/0", "run/1", "run/2"]


def test_the_pinned_mechanism_covers_what_is_plainly_easier(ledger):
    easier = [
        Repeated(STEP, 19),
        Repeated(SampledWithoutReplacement(Gaussian(0.5, 1.0), 9, 100), 20),
        Repeated(SampledWithoutReplacement(Gaussian(0.4, 1.0), 10, 100), 20),
        STEP,
    ]
    harder = [
        Repeated(STEP, 21),
        Repeated(SampledWithoutReplacement(Gaussian(0.5, 1.0), 11, 100), 20),
        Repeated(SampledWithoutReplacement(Gaussian(0.5, 0.99), 10, 100), 20),
        Repeated(Gaussian(0.5, 1.0), 20),
        Pure(0.01),
        Repeated(SampledWithoutReplacement(Gaussian(0.01, 1.0, Unit.AGENT), 1, 100), 20),
    ]
    for event in easier:
        ledger.charge("hospital", event, "run")
    assert ledger.status("hospital").releases == len(easier)
    for event in harder:
        with pytest.raises(LedgerError, match="not plainly covered"):
            ledger.check("hospital", event)
        with pytest.raises(LedgerError, match="not plainly covered"):
            ledger.charge("hospital", event, "run")
    assert ledger.status("hospital").releases == len(easier)


def test_renyi_rule_charges_any_mechanism(path):
    ledger = Ledger.create(path)
    status = ledger.set_budget("bank", EPSILON, DELTA, Renyi.suited(EPSILON, DELTA))
    order = status.budget.rule.order
    spent = 0.0
    for event, cost in [
        (Gaussian(0.3, 1.0), order * 0.3**2 / 2),
        (Repeated(Gaussian(0.1, 1.0), 5), order * 5 * 0.1**2 / 2),
        (compose([Gaussian(0.2, 1.0), Gaussian(0.1, 1.0)]), order * (0.2**2 + 0.1**2) / 2),
    ]:
        spent += cost
        status = ledger.charge("bank", event, "run")
        assert status.spent == pytest.approx(spent, rel=1e-9)
    assert status.epsilon_spent == pytest.approx(
        spent + math.log1p(-1 / order) - (math.log(DELTA) + math.log(order)) / (order - 1)
    )
    made = charge_until_refused(ledger, "bank", Gaussian(0.15, 1.0))
    assert made > 2
    status = ledger.status("bank")
    assert status.epsilon_spent <= EPSILON < status.budget.rule.epsilon(status.spent + order * 0.15**2 / 2, DELTA)


def test_the_suited_order_fits_the_most_gaussian_releases():
    event = Gaussian(0.02, 1.0)

    def fits(order):
        rule = Renyi(order)
        return rule.limit(EPSILON, DELTA) / rule.cost(event)

    best = Renyi.suited(EPSILON, DELTA).order
    assert fits(best) == max(fits(order) for order in range(2, 65))


def test_renyi_refuses_other_units_and_what_has_no_divergence(path):
    ledger = Ledger.create(path)
    ledger.set_budget("bank", EPSILON, DELTA, Renyi(8))
    for event, message in [
        (Gaussian(0.1, 1.0, Unit.AGENT), "never mix"),
        (PoissonSampled(Gaussian(0.1, 1.0, Unit.ADD_REMOVE_RECORD), 0.1), "never mix"),
        (Approximate(0.1, 1e-9), "Renyi"),
    ]:
        with pytest.raises(LedgerError, match=message):
            ledger.charge("bank", event, "run")
    assert ledger.status("bank").releases == 0


@pytest.mark.parametrize("rule", [Pinned(LOCAL), Renyi(8)])
@pytest.mark.parametrize(
    ("event", "message"),
    [
        (NonPrivate("loss"), "loss has no mechanism"),
        (compose([LOCAL, NonPrivate("loss")]), "loss has no mechanism"),
        (Participation(STEP, 1, 100), "no credit for being drawn"),
        (Repeated(Participation(STEP, 1, 100), 3), "no credit for being drawn"),
    ],
)
def test_what_no_rule_allows(path, rule, event, message):
    ledger = Ledger.create(path)
    ledger.set_budget("bank", EPSILON, DELTA, rule)
    with pytest.raises(LedgerError, match=message):
        ledger.charge("bank", event, "run")
    assert ledger.status("bank").releases == 0
    if isinstance(rule, Pinned):
        with pytest.raises(ValueError, match=message):
            Pinned(event)


# Budgets belong to owners ---------------------------------------------------------------------------------------------


def test_a_client_makes_neither_ledger_nor_budget(path, ledger):
    with pytest.raises(LedgerError, match=r"no ledger.*set-budget"):
        Ledger.open(path.with_name("other.sqlite"))
    assert not path.with_name("other.sqlite").exists()
    for act in (ledger.check, lambda d, e: ledger.charge(d, e, "run"), lambda d, e: ledger.status(d)):
        with pytest.raises(LedgerError, match=r"'clinic' has no budget here \(known: 'hospital'\).*set-budget"):
            act("clinic", LOCAL)
    assert ledger.datasets() == ["hospital"]


def test_a_ledger_is_never_begun_anew(path, ledger):
    ledger.charge("hospital", LOCAL, "run")
    with pytest.raises(LedgerError, match="never begun anew"):
        Ledger.create(path)
    assert Ledger.open(path).status("hospital").releases == 1
    assert os.listdir(path.parent) == [path.name]
    assert path.stat().st_mode & 0o077 == 0


def test_data_sets_are_apart(ledger):
    ledger.set_budget("clinic", 1.0, DELTA, Pinned(STEP))
    ledger.charge("hospital", LOCAL, "run")
    assert ledger.status("clinic").releases == 0
    assert [ledger.status(d).dataset for d in ledger.datasets()] == ["clinic", "hospital"]


def test_raising_keeps_what_is_spent_and_is_recorded(ledger):
    made = charge_until_refused(ledger, "hospital", LOCAL)
    status = ledger.set_budget("hospital", 2 * EPSILON, DELTA, Pinned(LOCAL))
    assert status.releases == made
    made += charge_until_refused(ledger, "hospital", LOCAL)
    assert best_epsilon(Repeated(LOCAL, made), DELTA).epsilon <= 2 * EPSILON
    assert best_epsilon(Repeated(LOCAL, made + 1), DELTA).epsilon > 2 * EPSILON
    budgets = [entry.body["epsilon"] for entry in ledger.status("hospital").history if entry.kind == "budget"]
    assert budgets == [EPSILON, 2 * EPSILON]


def test_lowering_below_what_is_spent_refuses_everything(ledger):
    for count in range(3):
        ledger.charge("hospital", LOCAL, f"run/{count}")
    ledger.set_budget("hospital", 0.01, DELTA, Pinned(LOCAL))
    with pytest.raises(BudgetExceeded):
        ledger.charge("hospital", STEP, "run")
    assert ledger.status("hospital").remaining == 0


def test_the_rule_is_fixed_before_the_first_release(ledger):
    ledger.set_budget("hospital", EPSILON, DELTA, Renyi(8))
    ledger.set_budget("hospital", EPSILON, DELTA, Pinned(LOCAL))
    ledger.charge("hospital", LOCAL, "run")
    for rule in (Renyi(8), Pinned(STEP), Pinned(Repeated(STEP, 40))):
        with pytest.raises(LedgerError, match="fixed before the first release"):
            ledger.set_budget("hospital", 5.0, DELTA, rule)
    assert ledger.status("hospital").budget.rule == Pinned(LOCAL)


@pytest.mark.parametrize(
    ("dataset", "epsilon", "delta", "message"),
    [
        ("", 1.0, 1e-5, "dataset = ''"),
        (" x", 1.0, 1e-5, "dataset = ' x'"),
        ("x\n", 1.0, 1e-5, "dataset"),
        ("x", 0.0, 1e-5, "epsilon = 0.0"),
        ("x", math.nan, 1e-5, "epsilon = nan"),
        ("x", 1.0, 1.0, "delta = 1.0"),
    ],
)
def test_bad_budgets_are_refused(ledger, dataset, epsilon, delta, message):
    with pytest.raises(ValueError, match=message):
        ledger.set_budget(dataset, epsilon, delta, Renyi(4))
    with pytest.raises(ValueError, match="order = 1"):
        Renyi(1)
    assert ledger.datasets() == ["hospital"]


def test_changed_content_warns_and_resets_nothing(ledger):
    data = np.arange(12.0).reshape(4, 3)
    other = data.copy()
    other[2, 1] += 1e-9
    assert content_hash(data) != content_hash(other) != content_hash(other.reshape(3, 4))
    assert content_hash(data) == content_hash(np.asfortranarray(data))
    assert not ledger.charge("hospital", LOCAL, "run", content_hash(data)).content_changed
    assert not ledger.check("hospital", LOCAL, content_hash(data)).content_changed
    changed = ledger.charge("hospital", LOCAL, "run", content_hash(other))
    assert changed.content_changed
    assert changed.releases == 2


# Death at any moment --------------------------------------------------------------------------------------------------

CLIENT = """
import os, signal, sqlite3, sys
from pri_rfed.privacy.events import Gaussian
from pri_rfed.privacy.ledger import BudgetExceeded, Ledger, LedgerError

path, released, die_at, most = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
statements = 0

class Connection(sqlite3.Connection):
    def execute(self, statement, *rest):
        # Killed before the statement number die_at, or in the middle of what it sets off.
        global statements
        statements += 1
        if statements == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(statement, *rest)

connect = sqlite3.connect
sqlite3.connect = lambda *a, **k: connect(*a, factory=Connection, **k)
ledger = Ledger.open(path)
out = open(released, "a")
for i in range(most):
    try:
        ledger.charge("data", Gaussian(0.01, 1.0), f"{os.getpid()}/{i}")
    except BudgetExceeded:
        print("full")
        break
    except LedgerError as error:
        print("refused", error)
        break
    out.write("released\\n")
    out.flush()
print(statements)
"""


def client(path, die_at=0, most=10**6, **options):
    script = textwrap.dedent(CLIENT)
    arguments = [sys.executable, "-c", script, str(path), str(path) + ".released", str(die_at), str(most)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, **options)


def released(path):
    file = path.with_name(path.name + ".released")
    return len(file.read_text().splitlines()) if file.exists() else 0


def counted(path):
    return Ledger.open(path).status("data").releases


@pytest.fixture
def wide(path):
    """A budget for 10^6 small releases."""
    Ledger.create(path).set_budget("data", 100.0, 1e-5, Pinned(Gaussian(0.01, 1.0)))
    return path


def test_killed_at_every_statement_of_a_charge(wide):
    process = client(wide, most=1)
    statements = int(process.communicate()[0].split()[-1])
    before = (counted(wide), released(wide))
    assert before == (1, 1)
    for die_at in range(1, statements + 1):
        process = client(wide, die_at, most=1)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        after = (counted(wide), released(wide))
        assert after[1] == before[1]
        assert before[0] <= after[0] <= before[0] + 1
        before = after


def test_killed_at_any_time(wide):
    """Released are never more than counted; counted are at most one more for each death."""
    rng = np.random.default_rng(7)
    deaths = 0
    while deaths < 25:
        start = released(wide)
        process = client(wide)
        while released(wide) == start and process.poll() is None:
            time.sleep(0.001)
        time.sleep(float(rng.uniform(0, 0.03)))
        process.kill()
        process.communicate()
        deaths += 1
        assert released(wide) <= counted(wide) <= released(wide) + deaths
    assert released(wide) >= 25


def test_killed_between_the_journal_and_the_file(wide):
    """A death inside the commit leaves a journal; the next reader takes the unfinished entry back."""
    ledger = Ledger.open(wide)
    ledger.charge("data", Gaussian(0.01, 1.0), "run")
    before = wide.read_bytes()
    script = f"""
        import os, signal, sqlite3
        connection = sqlite3.connect({str(wide)!r}, isolation_level=None)
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE entries SET body = hex(zeroblob(20000))")
        connection.execute("INSERT INTO entries SELECT number + 100, time, dataset, kind, body, hash FROM entries")
        connection.execute("UPDATE head SET entries = 0")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert wide.with_name(wide.name + "-journal").exists()
    assert wide.read_bytes() != before, "pages must have been spilled for the test to say anything"
    assert counted(wide) == 1
    assert not wide.with_name(wide.name + "-journal").exists()


def test_a_charge_is_synced_before_it_returns(wide, monkeypatch):
    """EXTRA syncs the file and, once the journal is gone, the folder: power may fail right after."""
    seen = []
    original = sqlite3.connect

    class Watched(sqlite3.Connection):
        def execute(self, statement, *rest):
            if statement == "COMMIT":
                for pragma in ("synchronous", "journal_mode"):
                    seen.append(super().execute(f"PRAGMA {pragma}").fetchone()[0])
            return super().execute(statement, *rest)

    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: original(*a, factory=Watched, **k))
    Ledger(wide).charge("data", Gaussian(0.01, 1.0), "run")
    assert seen == [3, "delete"]


def test_processes_never_overspend_together(path):
    event, cap = Gaussian(0.01, 1.0), 200
    epsilon = best_epsilon(Repeated(event, cap), DELTA).epsilon * (1 + 1e-6)
    status = Ledger.create(path).set_budget("data", epsilon, DELTA, Pinned(event))
    assert status.budget.limit == cap
    processes = [client(path) for _ in range(3)]
    outputs = [process.communicate()[0] for process in processes]
    assert all("full" in output for output in outputs)
    assert counted(path) == released(path) == cap


def test_a_full_disk_refuses_the_release(wide):
    """The file may not grow: the charge fails, nothing is released, and what was counted stays."""
    limit = wide.stat().st_size + 4096
    process = client(wide, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert "refused" in process.communicate()[0]
    assert 0 < released(wide) == counted(wide)
    process = client(wide, most=3)
    process.communicate()
    assert released(wide) == counted(wide) > 3


def test_a_folder_that_cannot_be_written_refuses_the_release(ledger, path, monkeypatch):
    original = sqlite3.connect

    def read_only(database, **options):
        return original(database.replace("mode=rw", "mode=ro"), **options)

    monkeypatch.setattr(sqlite3, "connect", read_only)
    with pytest.raises(LedgerError, match=r"readonly.*nothing may be released"):
        ledger.charge("hospital", LOCAL, "run")
    monkeypatch.undo()
    assert ledger.status("hospital").releases == 0


# Damage and tampering -------------------------------------------------------------------------------------------------


@pytest.fixture
def used(ledger, path):
    for count in range(4):
        ledger.charge("hospital", LOCAL, f"run/{count}")
    return path


def edit(path, *statements):
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    "statements",
    [
        ["DELETE FROM entries WHERE number = 5"],
        ["DELETE FROM entries WHERE number = 3"],
        ["DELETE FROM entries WHERE number = 3", "UPDATE entries SET number = number - 1 WHERE number > 3"],
        ["DELETE FROM entries WHERE number = 5", "UPDATE head SET entries = 4"],
        ["DELETE FROM entries"],
        ["DELETE FROM entries", "UPDATE head SET entries = 0"],
        ["DELETE FROM head"],
        ["INSERT INTO head SELECT * FROM head"],
        ["UPDATE head SET entries = 4"],
        ["UPDATE entries SET body = replace(body, '4.0', '9.0') WHERE number = 1"],
        ["UPDATE entries SET body = replace(body, 'run/1', 'run/7')"],
        ["UPDATE entries SET dataset = 'other' WHERE number = 3"],
        ["UPDATE entries SET kind = 'note' WHERE number = 3"],
        ["UPDATE entries SET time = '2001-01-01T00:00:00+00:00' WHERE number = 3"],
        ["UPDATE entries SET body = x'00ff' WHERE number = 3"],
        ["UPDATE entries SET hash = (SELECT hash FROM entries WHERE number = 2) WHERE number = 3"],
        ["INSERT INTO entries SELECT 6, time, dataset, kind, body, hash FROM entries WHERE number = 5"],
        ["CREATE TRIGGER forget AFTER INSERT ON entries BEGIN DELETE FROM entries WHERE number = NEW.number; END"],
        ["DROP TABLE head"],
        ["PRAGMA application_id = 1"],
        ["PRAGMA user_version = 2"],
    ],
)
def test_an_edited_ledger_is_refused(used, statements):
    edit(used, *statements)
    before = used.read_bytes()
    for act in (
        lambda: Ledger.open(used),
        lambda: Ledger(used).status("hospital"),
        lambda: Ledger(used).charge("hospital", LOCAL, "run"),
        lambda: Ledger(used).set_budget("hospital", 10.0, DELTA, Pinned(LOCAL)),
        lambda: Ledger.create(used),
    ):
        with pytest.raises(LedgerError, match=r"ledger\.sqlite"):
            act()
    assert used.read_bytes() == before


def test_a_damaged_file_never_counts_less(used, tmp_path):
    """Whatever bytes are altered: the ledger is refused, or says what it said before."""
    sound = Ledger.open(used).status("hospital")
    content = used.read_bytes()
    broken = tmp_path / "broken.sqlite"
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        start = int(rng.integers(len(damaged)))
        for at in range(start, min(len(damaged), start + int(rng.choice([1, 1, 16, 600])))):
            damaged[at] ^= int(rng.integers(1, 256))
        broken.write_bytes(damaged)
        try:
            status = Ledger.open(broken).status("hospital")
        except LedgerError:
            refused += 1
        else:
            assert status == sound
    assert refused > 50


def test_a_truncated_file_is_refused(used, tmp_path):
    content = used.read_bytes()
    broken = tmp_path / "broken.sqlite"
    for length in [*range(0, len(content), 777), len(content) - 1]:
        broken.write_bytes(content[:length])
        with pytest.raises(LedgerError, match=r"broken\.sqlite"):
            Ledger.open(broken)
        with pytest.raises(LedgerError):
            Ledger.create(broken)
        assert broken.stat().st_size == length


def test_other_files_are_no_ledgers(tmp_path):
    for name, content in {"text": b"epsilon = 1\n", "empty": b"", "zeros": bytes(8192)}.items():
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(LedgerError):
            Ledger.open(file)
        assert file.read_bytes() == content
    edit(tmp_path / "other", "CREATE TABLE entries (a)")
    with pytest.raises(LedgerError, match="is not a ledger"):
        Ledger.open(tmp_path / "other")
    with pytest.raises(LedgerError, match="there is no ledger"):
        Ledger.open(tmp_path)
    with pytest.raises(LedgerError, match="cannot create"):
        Ledger.create(tmp_path / "no" / "such" / "folder")


def test_a_copy_is_a_ledger_of_its_own(used, tmp_path):
    """What no single file can show: an older copy put back. The docstring says so."""
    copy = tmp_path / "copy.sqlite"
    shutil.copy(used, copy)
    assert Ledger.open(copy).status("hospital").releases == 4
