"""`pri-rfed account`, `calibrate` and `ledger`: what they print, and what they refuse."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT

from pri_rfed import cli
from pri_rfed.privacy.accountants import ACCOUNTANTS, best_epsilon
from pri_rfed.privacy.events import (
    Composed,
    Gaussian,
    Participation,
    Repeated,
    SampledWithoutReplacement,
    dumps,
)
from pri_rfed.privacy.ledger import Ledger


def words(text):
    return text.split()


PLAN = words("--agents 100 --sampled 10 --rounds 500 --records 1000 --batch 10 --steps 100 --clip 1")
LOCAL = Repeated(SampledWithoutReplacement(Gaussian(2 / 10, 0.6), 10, 1000), 100)
"""What PLAN with noise 0.6 releases in a round: the replacement of a record moves a mean of 10 by 2C/10."""

CONFIG = """
[run]
rounds = 10
sampled = 0.5

[problem]
name = "principal-eigenvector"

[data]
source = "digits"

[data.partition]
name = "dirichlet"
agents = 10
alpha = 1.0

[trainer]
name = "dp-rsgd"
steps = 3
{trainer}

[privacy]
{privacy}
"""


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command line in this process: (exit code, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["pri-rfed", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def figures(command):
    """The JSON that a command prints."""

    def run(*arguments):
        code, out, err = command(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return run


@pytest.fixture
def config(tmp_path):
    def write(trainer="", privacy=""):
        path = tmp_path / "plan.toml"
        path.write_text(CONFIG.format(trainer=trainer, privacy=privacy))
        return path

    return write


# account --------------------------------------------------------------------------------------------------------------


def test_account_says_both_figures_by_every_accountant(figures):
    out = figures("account", *PLAN, "--noise", 0.6)
    before = Repeated(Participation(LOCAL, 10, 100), 500)
    after = Repeated(LOCAL, 500)
    assert out["global"]["epsilon"] == best_epsilon(before, 1e-5).epsilon
    assert out["ledger"]["epsilon"] == best_epsilon(after, 1e-5).epsilon
    assert set(out["accountants"]) == set(ACCOUNTANTS)
    for name, accountant in ACCOUNTANTS.items():
        said = out["accountants"][name]
        assert said["sound"] is accountant.sound
        assert said["global_epsilon"] == accountant.epsilon(before, 1e-5)
        if accountant.sound:
            assert said["ledger_epsilon"] == accountant.epsilon(after, 1e-5)
    assert (out["unit"], out["delta"], out["private"]) == ("replace-record", 1e-5, True)
    (group,) = out["groups"]
    assert (group["records"], group["agents"], group["participations"]) == (1000, 100, 500)
    assert group["local"]["epsilon"] == best_epsilon(LOCAL, 1e-5).epsilon


def test_account_has_power(figures):
    """Halved sensitivity, noise a third too small, or a round left out are other figures."""
    right = figures("account", *PLAN, "--noise", 0.6)["global"]["epsilon"]
    assert figures("account", *PLAN, "--noise", 1.2)["global"]["epsilon"] < 0.8 * right
    assert figures("account", *PLAN, "--noise", 0.4)["global"]["epsilon"] > 1.2 * right
    assert figures("account", *PLAN, "--rounds", 499, "--noise", 0.6)["global"]["epsilon"] < right


@pytest.mark.parametrize(("flags", "rounds"), [("--noise 0.6 --delta 1e-7", 500), ("--noise 0.6 --sampled 100", 500)])
def test_account_prints_tables(command, flags, rounds):
    code, out, _ = command("account", *PLAN, *flags.split())
    assert code == 0
    lines = out.splitlines()
    for name, mark in (("pld", "sound"), ("rdp", "sound"), ("theorem-4.2", "NOT A GUARANTEE")):
        assert any(line.startswith(name) and line.rstrip().endswith(mark) for line in lines)
    assert "not a guarantee at record level" in out
    assert "before the run (global)" in out
    assert f"took part {rounds} times" in out
    assert "one record of one agent is replaced" in out


def test_all_agents_sampled_have_one_figure(figures):
    out = figures("account", *PLAN, "--noise", 0.6, "--sampled", 100)
    assert out["global"]["epsilon"] == pytest.approx(out["ledger"]["epsilon"], rel=1e-3)


def test_without_a_mechanism_epsilon_is_null(figures, command):
    for flags in (("--noise", 0), ("--trainer", "rsgd")):
        plan = [f for f in PLAN if flags[0] == "--noise" or f not in ("--clip", "1")]
        out = figures("account", *plan, *flags)
        assert out["private"] is False
        assert out["global"]["epsilon"] is out["ledger"]["epsilon"] is None
        assert all(entry["global_epsilon"] is None for entry in out["accountants"].values())
    assert "∞ (not private)" in command("account", *PLAN, "--noise", 0)[1]


def test_account_of_variance_reduction(figures):
    plan = words("--agents 20 --sampled 4 --rounds 30 --records 500 --batch 5 --steps 10 --clip 0.5")
    plan += words("--trainer dp-rsvrg --epochs 2 --alpha 0.25 --noise 1.5")
    out = figures("account", *plan)
    full = Gaussian(2 * 0.5 / 500, 0.5 * 1.5)
    step = SampledWithoutReplacement(Gaussian(4 * 0.5 / 5, 0.75**0.5 * 1.5), 5, 500)
    event = Repeated(Participation(Repeated(Composed((full, step)), 20), 4, 20), 30)
    assert out["global"]["epsilon"] == pytest.approx(best_epsilon(event, 1e-5).epsilon, rel=1e-6)
    once = figures("account", *plan, "--set", "trainer.full_gradient_noise=once-an-epoch")
    assert once["global"]["epsilon"] < out["global"]["epsilon"]


def test_account_of_other_units(figures):
    out = figures("account", *PLAN, "--noise", 0.6, "--set", "trainer.sampling=poisson")
    assert out["unit"] == "add-remove-record"


def test_account_of_a_configuration_by_groups(figures, command, config):
    path = config("batch = 10\nnoise = 0.1")
    out = figures("account", path)
    assert out["agents"] == 10 and out["sampled"] == 5 and out["rounds"] == 10
    assert 1 < len(out["groups"]) <= 8
    assert sum(group["agents"] for group in out["groups"]) == 10
    records = [group["records"] for group in out["groups"]]
    assert records == sorted(records) and records[0] == out["records"][0]
    spent = [group["global"]["epsilon"] for group in out["groups"]]
    assert spent == sorted(spent, reverse=True)
    assert out["global"]["epsilon"] == spent[0]
    hardest = Repeated(SampledWithoutReplacement(Gaussian(2 / 10, 0.1), 10, records[0]), 3)
    assert spent[0] == best_epsilon(Repeated(Participation(hardest, 5, 10), 10), 1e-5).epsilon
    assert figures("account", path, "--delta", 1e-8)["global"]["epsilon"] > spent[0]
    assert figures("account", path, "--set", "run.rounds=20")["global"]["epsilon"] > spent[0]
    code, text, _ = command("account", path)
    assert code == 0 and f"≥ {records[0]}" in text


def test_account_of_a_configuration_with_a_target(figures, config):
    out = figures("account", config(privacy="epsilon = 2.0\ndelta = 1e-6"))
    assert 1.99 < out["global"]["epsilon"] <= 2.0
    assert out["delta"] == 1e-6


def test_account_of_agents_as_units(figures, command, config):
    path = config("noise = 0.1")
    aggregation = '[aggregation]\nname = "agent-level-mean"\nclip = 0.1\nnoise_multiplier = 5.0\n'
    path.write_text(path.read_text() + aggregation)
    out = figures("account", path)
    event = Repeated(SampledWithoutReplacement(Gaussian(1.0, 5.0), 5, 10), 10)
    assert out["agent_level"]["epsilon"] == pytest.approx(best_epsilon(event, 1e-5).epsilon, rel=1e-6)
    assert out["agent_level"]["unit"] == "agent"
    assert out["unit"] == "replace-record", "units never mix"
    assert "whole data set of one agent" in command("account", path)[1]


def test_account_of_a_finished_run(figures, command, config, tmp_path):
    run = figures("run", config(privacy="epsilon = 2.0"), "--out", tmp_path / "run")
    out = figures("account", tmp_path / "run")
    assert out["global"]["epsilon"] == run["epsilon_global"]
    assert out["ledger"]["epsilon"] == run["epsilon_ledger_max"]
    assert out["ledger"]["participations"] < 10
    assert figures("account", tmp_path / "run", "--delta", 1e-9)["global"]["epsilon"] > run["epsilon_global"]
    code, _, told = command("account", tmp_path / "run", "--delta", 0)
    assert code == 2 and "--delta 0: must lie strictly between 0 and 1" in told
    (tmp_path / "run" / "privacy.json").write_text("{}")
    code, _, err = command("account", tmp_path / "run")
    assert code == 2 and "no privacy record" in err


def test_published_table(figures, command):
    out = figures("account", ROOT / "configs" / "table1.toml")
    assert (out["epsilon"], out["delta"], out["delta_hat"]) == (0.15, 1e-4, 1e-3)
    rows = {(row["agents"], row["sampled"], row["rounds"]): row for row in out["rows"]}
    one, ten = rows[100, 1, 500], rows[100, 10, 100]
    assert one["rate"] == 0.01
    assert one["theorem-4.2"]["sound"] is False
    assert one["theorem-4.2"]["advanced"]["epsilon"] == pytest.approx(0.1357, abs=1e-4)
    assert one["theorem-4.2"]["sequential"]["epsilon"] == pytest.approx(0.809, abs=1e-3)
    assert one["delta"] == pytest.approx(1.5e-3)
    assert one["global"]["epsilon"] == pytest.approx(0.2719, rel=2e-3)
    assert ten["theorem-4.2"]["advanced"]["epsilon"] == pytest.approx(21.5, abs=0.05)
    assert ten["global"]["epsilon"] == pytest.approx(0.2277, rel=2e-3)
    code, text, _ = command("account", ROOT / "configs" / "table1.toml")
    assert code == 0
    assert "0.1357" in text and "0.2719" in text and "not a guarantee" in text


# calibrate ------------------------------------------------------------------------------------------------------------


def test_calibrated_noise_reaches_the_target(figures):
    out = figures("calibrate", *PLAN, "--epsilon", 1)
    assert 0.998 < out["global"]["epsilon"] <= 1
    assert out["target"] == {"epsilon": 1, "delta": 1e-5}
    again = figures("account", *PLAN, "--noise", repr(out["noise"]))
    assert again["global"]["epsilon"] == out["global"]["epsilon"]
    assert figures("account", *PLAN, "--noise", out["noise"] * 2 / 3)["global"]["epsilon"] > 1.3


@pytest.mark.parametrize("unknown", ["rounds", "sampled", "steps"])
def test_calibrated_counts_are_the_largest(figures, unknown):
    out = figures("calibrate", *PLAN, "--noise", 0.6, "--epsilon", 0.8, "--solve", unknown)
    assert out["global"]["epsilon"] <= 0.8
    more = figures("account", *PLAN, "--noise", 0.6, f"--{unknown}", out[unknown] + 1)
    assert more["global"]["epsilon"] > 0.8


def test_the_noise_that_figures_are_for_is_shown(command):
    for options in (["account"], ["calibrate", "--epsilon", 0.8, "--solve", "rounds"]):
        assert ", σ = 0.6 in the Riemannian norm\n" in command(*options, *PLAN, "--noise", 0.6)[1]


def test_calibrate_prints_the_published_rule_beside_the_truth(figures, command):
    plan = words("--agents 100 --sampled 10 --rounds 500 --records 1000 --steps 5 --clip 1")
    plan += words("--epsilon 0.15 --delta 1e-4")
    rule = figures("calibrate", *plan)["published"]
    assert (rule["claimed_epsilon"], rule["sound"]) == (0.15, False)
    assert rule["true_epsilon"] == pytest.approx(0.272, abs=1e-3)
    _, text, _ = command("calibrate", *plan)
    assert "least noise" in text and "NOT A GUARANTEE: truly it has ε = 0.2724" in text


def test_calibrate_splits_the_variance(figures):
    plan = words("--agents 10 --rounds 20 --records 300 --batch 10 --steps 10 --clip 1")
    plan += words("--trainer dp-rsvrg --epsilon 1")
    fixed = figures("calibrate", *plan)
    split = figures("calibrate", *plan, "--optimise-alpha")
    assert split["noise"] < fixed["noise"]
    assert split["trainer"]["alpha"] != fixed["trainer"]["alpha"]
    assert split["global"]["epsilon"] <= 1


def test_calibrate_a_configuration(figures, config):
    out = figures("calibrate", config(privacy="epsilon = 2.0"), "--epsilon", 0.5)
    assert 0.499 < out["global"]["epsilon"] <= 0.5
    assert out["noise_unit"] == "sensitivity"
    assert figures("calibrate", config(privacy="epsilon = 2.0"))["target"]["epsilon"] == 2.0
    steps = figures("calibrate", config(privacy="epsilon = 2.0"), "--epsilon", 4, "--solve", "steps")
    assert steps["steps"] > 3 and steps["global"]["epsilon"] <= 4


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            ["account"],
            [f"--{flag} is missing" for flag in ("agents", "rounds", "records", "noise", "clip")],
        ),
        (["account", *PLAN], ["--noise is missing"]),
        (["account", *PLAN, "--noise", "-1"], ["--noise = -1.0 must be a finite number >= 0"]),
        (["account", *PLAN, "--noise", "nan"], ["--noise"]),
        (["account", *PLAN, "--noise", "1", "--batch", "ten"], ["--batch ten: must be a whole number, or full"]),
        (["account", *PLAN, "--noise", "1", "--batch", "0"], ["--batch = 0"]),
        (["account", *PLAN, "--noise", "1", "--batch", "1001"], ["batch = 1001 exceeds the 1000 records"]),
        (["account", *PLAN, "--noise", "1", "--steps", "0"], ["--steps = 0"]),
        (["account", *PLAN, "--noise", "1", "--sampled", "101"], ["--sampled 101: must not exceed --agents 100"]),
        (["account", *PLAN, "--noise", "1", "--sampled", "0"], ["--sampled 0: must be at least 1"]),
        (["account", *PLAN, "--noise", "1", "--rounds", "0"], ["--rounds 0: must be at least 1"]),
        (["account", *PLAN, "--noise", "1", "--delta", "1"], ["--delta 1: must lie strictly between 0 and 1"]),
        (["account", *PLAN, "--noise", "1", "--delta", "0"], ["--delta 0: must lie strictly between 0 and 1"]),
        (["account", *PLAN, "--noise", "1", "--trainer", "dp-sgd"], ["--trainer dp-sgd: unknown; did you mean"]),
        (["account", *PLAN, "--noise", "1", "--alpha", "0.3"], ["--alpha: dp-rsgd has no such option"]),
        (["account", *PLAN, "--noise", "1", "--set", "run.rounds=3"], ["--set run: without CONFIG"]),
        (["account", *PLAN, "--noise", "1", "--set", "trainer.setps=3"], ["trainer.setps: unknown key"]),
        (["account", "nowhere.toml"], ["nowhere.toml: there is no such file"]),
        (["calibrate", *PLAN], ["--epsilon is missing"]),
        (["calibrate", *PLAN, "--epsilon", "0"], ["--epsilon 0: must be a positive finite number"]),
        (["calibrate", *PLAN, "--epsilon", "1", "--solve", "clip"], ["--solve clip: must be one of noise, rounds"]),
        (["calibrate", *PLAN, "--epsilon", "1", "--solve", "rounds"], ["--noise is missing"]),
        (
            ["calibrate", *PLAN, "--epsilon", "1e-3", "--noise", "0.01", "--solve", "rounds"],
            ["epsilon = 0.001 at delta = 1e-05: already one round spends more; add noise"],
        ),
        (
            ["calibrate", *PLAN, "--epsilon", "1", "--optimise-alpha"],
            ["trainer = 'dp-rsgd' has no alpha: it splits no variance"],
        ),
        (
            ["calibrate", *(f for f in PLAN if f not in ("--clip", "1")), "--epsilon", "1", "--trainer", "rsgd"],
            ["trainer = 'rsgd' has no noise to calibrate"],
        ),
    ],
)
def test_mistakes_are_one_line_each(command, arguments, lines):
    code, out, err = command(*arguments)
    assert code == 2
    assert out == ""
    said = err.splitlines()
    assert len(said) == len(lines), err
    for line in lines:
        assert any(one.startswith(line) for one in said), (line, err)


def test_flags_do_not_go_with_a_configuration(command, config, tmp_path):
    code, _, err = command("account", config("noise = 1.0"), "--agents", 3, "--steps", 2)
    assert code == 2
    assert err.splitlines() == [
        f"--{flag} describes a plan without CONFIG; with one, use --set section.key=value"
        for flag in ("agents", "steps")
    ]
    code, _, err = command("account", ROOT / "configs" / "table1.toml", "--agents", 3)
    assert (code, err) == (2, "--agents: only --delta and --json go with such a file\n")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("[account]\nepsilon = 0.15\ndelta = 1e-4", ["account.row: must be a list of tables"]),
        (
            "[account]\nepsilon = 0.15\n[[account.row]]\nagents = 3\nsampled = 1\nrounds = 1",
            ["account.delta is missing"],
        ),
        (
            "[account]\nepsilon = -1.0\ndelta = 2.0\n[[account.row]]\nagents = 3\nsampled = 4\nsize = 1\n[other]",
            [
                "account.epsilon = -1.0 must",
                "account.delta = 2.0 must",
                "account.row 1.size: unknown",
                "account.row 1.rounds is missing",
                "other: unknown section",
            ],
        ),
    ],
)
def test_mistakes_in_a_published_table(command, tmp_path, text, lines):
    path = tmp_path / "claims.toml"
    path.write_text(text)
    code, _, err = command("account", path)
    assert code == 2
    for line in lines:
        assert any(one.startswith(line) for one in err.splitlines()), (line, err)


# ledger ---------------------------------------------------------------------------------------------------------------


MECHANISM = words("--rule pinned --records 1000 --batch 10 --steps 100 --clip 1 --noise 0.6")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "ledger.sqlite"


def test_a_pinned_budget_from_flags(figures, command, file):
    arguments = ["ledger", "set-budget", "--ledger", file, "--dataset", "ward 3", "--epsilon", 2]
    out = figures(*arguments, *MECHANISM)
    cap = out["budget"]["limit"]
    assert best_epsilon(Repeated(LOCAL, int(cap)), 1e-5).epsilon <= 2
    assert best_epsilon(Repeated(LOCAL, int(cap) + 1), 1e-5).epsilon > 2
    Ledger.open(file).charge("ward 3", LOCAL, "run 7, round 1")
    shown = figures("ledger", "show", "--ledger", file)["datasets"][0]
    assert (shown["releases"], shown["remaining"]["of_limit"]) == (1, cap - 1)
    assert shown["spent"]["epsilon"] == best_epsilon(LOCAL, 1e-5).epsilon
    code, text, _ = command("ledger", "show", "--ledger", file, "--dataset", "ward 3")
    assert code == 0
    for part in ("ward 3", "ε = 2 at δ = 1e-05", "by 1 releases", f"{cap - 1:.0f} releases", "run 7, round 1"):
        assert part in text
    raised = figures(*arguments[:-1], 3)
    assert raised["budget"]["rule"] == out["budget"]["rule"]
    assert raised["budget"]["limit"] > cap and raised["releases"] == 1
    assert [entry["kind"] for entry in raised["history"]] == ["budget", "charge", "budget"]


def test_another_name_in_a_ledger_is_noticed(command, file):
    budget = ("ledger", "set-budget", "--ledger", file, "--epsilon", 1, "--dataset")
    assert command(*budget, "ward/2026")[2] == ""
    assert command(*budget, "ward/2026")[2] == ""
    assert command(*budget, "Ward/2026")[2].startswith("note: Ward/2026 is a new data set, beside ward/2026; ")


def test_a_budget_of_labels_alone_is_called_that(figures, command, file):
    command("ledger", "set-budget", "--ledger", file, "--dataset", "a", "--epsilon", 9)
    ledger, show = Ledger.open(file), ("ledger", "show", "--ledger", file)
    ledger.charge("a", LOCAL, "run: round 1", protects="label DP: its label alone")
    assert "  but        all releases: label DP: its label alone" in command(*show)[1].splitlines()
    ledger.charge("a", LOCAL, "run: round 2")
    assert "  but        1 of 2 releases: label DP: its label alone" in command(*show)[1].splitlines()
    assert figures(*show)["datasets"][0]["protects"] == {"label DP: its label alone": 1}


def test_a_pinned_budget_from_an_event(figures, file, tmp_path):
    (tmp_path / "event.json").write_text(dumps(LOCAL))
    pinned = ["--rule", "pinned", "--event", tmp_path / "event.json"]
    out = figures("ledger", "set-budget", "--ledger", file, "--dataset", "a", "--epsilon", 2, *pinned)
    assert out["budget"]["rule"]["mechanism"] == LOCAL.to_dict()


def test_a_renyi_budget(figures, command, file):
    set_budget = ["ledger", "set-budget", "--ledger", file, "--epsilon", 2, "--delta", 1e-6, "--dataset"]
    assert figures(*set_budget, "a")["budget"]["rule"]["name"] == "rdp"
    assert figures(*set_budget, "b", "--rule", "rdp", "--order", 12)["budget"]["rule"]["order"] == 12
    Ledger.open(file).charge("b", LOCAL, "run")
    raised = figures("ledger", "set-budget", "--ledger", file, "--epsilon", 4, "--dataset", "b")
    assert (raised["budget"]["rule"]["order"], raised["budget"]["delta"]) == (12, 1e-6)
    code, _, err = command(*set_budget, "b", "--rule", "rdp", "--order", 13)
    assert (code, len(err.splitlines())) == (1, 1)
    assert "fixed before the first release" in err
    assert "order 12" in command("ledger", "show", "--ledger", file, "--dataset", "b")[1]
    assert len(figures("ledger", "show", "--ledger", file)["datasets"]) == 2


def test_ledgers_that_cannot_be_trusted_stop_the_command(command, file):
    command("ledger", "set-budget", "--ledger", file, "--dataset", "a", "--epsilon", 2)
    code, _, err = command("ledger", "show", "--ledger", file, "--dataset", "b")
    assert code == 1 and "'b' has no budget here (known: 'a')" in err
    content = bytearray(file.read_bytes())
    content[-200:] = bytes(200)
    file.write_bytes(content)
    for arguments in (("show",), ("set-budget", "--dataset", "a", "--epsilon", 9)):
        code, _, err = command("ledger", *arguments, "--ledger", file)
        assert (code, len(err.splitlines())) == (1, 1), err
        assert str(file) in err
    assert file.read_bytes() == content
    code, _, err = command("ledger", "show", "--ledger", file.with_name("none"))
    assert code == 1 and "there is no ledger" in err


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--epsilon", "0"], "--epsilon 0: must be a positive finite number"),
        (["--epsilon", "1", "--delta", "1"], "--delta 1: must lie strictly between 0 and 1"),
        (["--epsilon", "1", "--rule", "count"], "--rule count: must be pinned or rdp"),
        (["--epsilon", "1", "--rule", "rdp", "--order", "1"], "order = 1 must be a whole number >= 2"),
        (["--epsilon", "1", "--order", "4"], "--order: takes --rule rdp"),
        (["--epsilon", "1", "--noise", "1"], "--noise: describes a mechanism, which takes --rule pinned"),
        (["--epsilon", "1", "--rule", "pinned", "--event", "missing.json"], "[Errno 2] No such file"),
        (["--epsilon", "1", *MECHANISM, "--noise", "0"], "mechanism: dp-rsgd without noise has no mechanism"),
        (["--epsilon", "1", "--dataset", " "], "dataset = ' '"),
        (["--epsilon", "1", "--rule", "rdp", "--order", "2"], "epsilon = 1 at delta = 1e-05 does not allow a single"),
        (["--epsilon", "0.01", *MECHANISM], "epsilon = 0.01 at delta = 1e-05 does not allow a single release"),
    ],
)
def test_mistakes_in_a_budget(command, file, flags, line):
    code, _, err = command("ledger", "set-budget", "--ledger", file, "--dataset", "a", *flags)
    assert code == 2
    assert err.startswith(line), err
    assert len(err.splitlines()) == 1
    assert not file.exists() or Ledger.open(file).datasets() == []


# The real command -----------------------------------------------------------------------------------------------------


def test_the_installed_command():
    program = [sys.executable, "-m", "pri_rfed.cli", "account"]
    done = subprocess.run([*program, *PLAN, "--noise", "0.6", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["global"]["epsilon"] == pytest.approx(1.046, abs=1e-3)
    assert done.stderr == ""
    failed = subprocess.run(program, capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    assert "Traceback" not in failed.stderr
