"""A federation as administrators set it up: keys, a server, clients with their owners' policies; and its faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from federation import session_of
from test_participant import DIM, N, make

from pri_rfed import keys
from pri_rfed.coordinator import RunStopped, State
from pri_rfed.experiment.config import ConfigError
from pri_rfed.experiment.federation import load_federation, open_run
from pri_rfed.privacy.ledger import Ledger
from server.superlink import SuperLink, free_port, start_process, stop, tail

PRIRFED = [sys.executable, "-m", "pri_rfed.cli"]
PATIENCE = 240.0
AGENTS = 3


def tables(folder: Path, **changes: Any) -> dict[str, Any]:
    entries = [{"name": f"ward-{i}", "records": N, "key": str(folder / f"ward-{i}.pub")} for i in range(AGENTS)]
    return {
        "run": {"name": "wards", "rounds": 12, "sampled": 2},
        "problem": {"name": "principal-eigenvector"},
        "trainer": {
            "name": "dp-rsgd", "steps": 4, "batch": 8, "noise": 4.0, "noise_unit": "sensitivity", "step_size": 0.1,
        },
        "privacy": {"delta": 1e-5},
        "federation": {"record_shape": [DIM], "agents": entries, "exchange": {"timeout": 60.0, "wait": 100.0}},
    } | changes  # fmt: skip


class Wards:
    """A server and clients as a supervisor runs them: a client that ends is started again."""

    def __init__(self, folder: Path, epsilon: float):
        self.folder, self.out, self.port = folder, folder / "run", free_port()
        self.keys = folder / "keys"
        subprocess.run(
            [*PRIRFED, "keys", "server", str(self.keys), "--host", "127.0.0.1"],
            check=True, capture_output=True, timeout=PATIENCE,
        )  # fmt: skip
        for i in range(AGENTS):
            keys.make_client_key(folder / f"ward-{i}")
            make(folder / f"home-{i}", agent=f"ward-{i}", epsilon=epsilon)
        (folder / "federation.toml").write_text(tomli_w.dumps(tables(folder)))
        self.server: subprocess.Popen[bytes] | None = None
        self.clients: dict[int, subprocess.Popen[bytes]] = {}

    def start_server(self) -> None:
        command = [*PRIRFED, "server", str(self.folder / "federation.toml"), "--keys", str(self.keys)]
        options = ["--out", str(self.out), "--listen", f"127.0.0.1:{self.port}"]
        self.server = start_process([*command, *options], self.folder / "server.log")

    def start_clients(self) -> None:
        for i in range(AGENTS):
            if i not in self.clients or self.clients[i].poll() is not None:
                command = [*PRIRFED, "client", str(self.folder / f"home-{i}" / "policy.toml")]
                options = ["--server", f"127.0.0.1:{self.port}", "--ca", str(self.keys / keys.AUTHORITY)]
                self.clients[i] = start_process(
                    [*command, *options, "--key", str(self.folder / f"ward-{i}")], self.folder / f"client-{i}.log"
                )

    def until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, tail(self.folder / "server.log")
            self.start_clients()
            time.sleep(0.2)

    def ended(self) -> bool:
        assert self.server is not None
        return self.server.poll() is not None

    def rounds(self) -> int:
        path = self.out / "rounds.jsonl"
        return path.read_text().count("\n") if path.is_file() else 0

    def releases(self) -> list[int]:
        return [Ledger.open(self.folder / f"home-{i}" / "ledger").status("ward/2026").releases for i in range(AGENTS)]

    def stop(self) -> None:
        for process in (*self.clients.values(), *([self.server] if self.server else [])):
            stop(process)


@pytest.fixture
def wards(tmp_path: Path, epsilon: float) -> Iterator[Wards]:
    running = Wards(tmp_path, epsilon)
    try:
        yield running
    finally:
        running.stop()


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [20.0])
def test_a_server_that_is_killed_goes_on_where_it_was(wards: Wards) -> None:
    wards.start_server()
    wards.until(lambda: wards.rounds() >= 3)
    assert wards.server is not None
    wards.server.kill()
    wards.server.wait()
    before = State.load(wards.out / "checkpoint.npz")
    assert 2 <= before.round < 12
    assert wards.out.stat().st_mode & 0o077 == 0, "the seed by which agents are drawn is in there"
    # A client dies, too, at whatever it is doing.
    wards.clients[0].send_signal(signal.SIGKILL)
    wards.start_server()
    wards.until(wards.ended)
    assert wards.server.returncode == 0, tail(wards.folder / "server.log")
    after = State.load(wards.out / "checkpoint.npz")
    assert "goes on with this run, by the configuration in it" in (wards.folder / "server.log").read_text()
    assert after.round == 12 and after.history[: before.round] == before.history
    summary = json.loads((wards.out / "summary.json").read_text())
    assert summary["runtime"] == "server" and summary["private"] and summary["cost"] is None
    assert abs(np.linalg.norm(np.load(wards.out / "point.npy")) - 1) < 1e-9
    # The server counts no less than the ledgers: what was lost with it, or with a client, counts as well.
    assert all(own <= known for own, known in zip(wards.releases(), after.participations.tolist(), strict=True))
    # Nothing is left to do.
    wards.start_server()
    wards.until(wards.ended)
    assert wards.server.returncode == 0 and State.load(wards.out / "checkpoint.npz").round == 12


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [20.0])
def test_a_superlink_that_is_killed_stops_the_run_and_it_goes_on(wards: Wards) -> None:
    wards.start_server()
    wards.until(lambda: wards.rounds() >= 2)
    assert wards.server is not None
    for pid in session_of(wards.server.pid):
        if b"flower-superlink" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    wards.until(wards.ended)
    said = tail(wards.folder / "server.log", 40)
    assert wards.server.returncode == 1 and "the SuperLink cannot be reached" in said, said
    before = State.load(wards.out / "checkpoint.npz")
    wards.start_server()
    wards.until(wards.ended)
    assert wards.server.returncode == 0, tail(wards.folder / "server.log")
    after = State.load(wards.out / "checkpoint.npz")
    assert "goes on with this run, by the configuration in it" in (wards.folder / "server.log").read_text()
    assert after.round == 12 and after.history[: before.round] == before.history
    assert all(own <= known for own, known in zip(wards.releases(), after.participations.tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [2.0])
def test_agents_whose_budget_is_used_up_end_the_run(wards: Wards) -> None:
    wards.start_server()
    wards.until(wards.ended)
    assert wards.server is not None
    said = tail(wards.folder / "server.log", 40)
    assert wards.server.returncode == 1 and "it would pass the owner's budget" in said, said
    state = State.load(wards.out / "checkpoint.npz")
    assert state.participations.tolist() == wards.releases(), "who declined has not spent"
    assert state.participations.sum() > 0


# Configurations -------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(AGENTS):
        keys.make_client_key(tmp_path / f"ward-{i}")
    return tmp_path


def test_a_federation_is_read(folder: Path) -> None:
    federation = load_federation(tables(folder), folder)
    assert federation.experiment.agents.counts.tolist() == [N] * AGENTS
    assert federation.exchange.timeout == 60.0 and federation.experiment.problem.record_shape == (DIM,)
    again = load_federation(federation.experiment.resolved, folder / "elsewhere")
    assert again.experiment.resolved == federation.experiment.resolved and again.agents == federation.agents


def test_its_choice_of_agents_is_not_to_be_predicted(folder: Path) -> None:
    seeds = {load_federation(tables(folder), folder).experiment.run.seed for _ in range(3)}
    assert len(seeds) == 3 and min(seeds) > 2**32
    assert load_federation(tables(folder, run={"name": "a", "rounds": 1, "seed": 3}), folder).experiment.run.seed == 3


def test_a_run_is_named_like_its_file_hidden_and_gone_on_with(folder: Path, tmp_path: Path) -> None:
    config, out = tmp_path / "two wards.toml", tmp_path / "runs" / "run"
    changed = tables(folder)
    del changed["run"]["name"]
    config.write_text(tomli_w.dumps(changed))
    federation, run, begun = open_run(config, out)
    assert federation.experiment.run.name == "two-wards" and not begun
    assert out.stat().st_mode & 0o077 == 0, "the seed of the draws is in it"
    run.write("config.toml", tomli_w.dumps(federation.experiment.resolved))
    config.unlink()
    again, run, begun = open_run(config, out)
    assert begun and run.path == out and again.experiment.resolved == federation.experiment.resolved


def test_noise_is_found_for_a_target(folder: Path) -> None:
    trainer = {"name": "dp-rsgd", "steps": 2, "batch": 8}
    changed = tables(folder, trainer=trainer, privacy={"epsilon": 3.0, "delta": 1e-5})
    federation = load_federation(changed, folder)
    assert federation.experiment.resolved["trainer"]["noise"] > 0


@pytest.mark.parametrize(
    ("section", "change", "reason"),
    [
        ("record_shape", None, "record_shape"),
        ("record_shape", [0], "record_shape"),
        ("agents", [], "at least one"),
        ("agents", [{"name": "a", "records": 5}], "key is missing"),
        ("agents", [{"name": "a", "records": 5, "key": "absent.pub"}], "there is no file"),
        ("agents", [{"name": "a", "records": 0, "key": "ward-0.pub"}], "at least 1"),
        ("agents", [{"name": "a", "records": 5, "key": "ward-0.pub"}] * 2, "'a' is there twice"),
        ("exchange", {"timeout": -1.0}, "timeout"),
        ("exchange", {"patience": 1}, "patience"),
        ("weights", [1], "unknown key"),
    ],
)
def test_mistakes_are_named(section: str, change: Any, reason: str, folder: Path) -> None:
    wrong = tables(folder)
    wrong["federation"][section] = change
    with pytest.raises(ConfigError, match=reason):
        load_federation(wrong, folder)


def test_an_authority_whose_key_was_moved_away_is_not_replaced(tmp_path: Path) -> None:
    command = [*PRIRFED, "keys", "server", str(tmp_path), "--host", "fl.example.org"]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    authority, key = tmp_path / keys.AUTHORITY, (tmp_path / keys.AUTHORITY_KEY).read_bytes()
    before, renewed = authority.read_bytes(), tmp_path / keys.SERVER
    (tmp_path / keys.AUTHORITY_KEY).unlink()
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 2 and "ca.crt is there already" in done.stderr and "ca.key back" in done.stderr
    assert authority.read_bytes() == before
    (tmp_path / keys.AUTHORITY_KEY).write_bytes(key)
    certificate = renewed.read_bytes()
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    assert authority.read_bytes() == before and renewed.read_bytes() != certificate


def test_a_superlink_that_is_gone_before_the_rounds_begin_stops_the_run_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys.make_authority(tmp_path)
    keys.make_server_certificate(tmp_path, ["127.0.0.1"])
    keys.make_client_key(tmp_path / "client")
    ending = [sys.executable, "-c", ""]
    monkeypatch.setattr("server.superlink.start_process", lambda command, log, env: start_process(ending, log, env))
    monkeypatch.setattr(SuperLink, "_await_start", lambda self: None)
    with SuperLink(tmp_path, tmp_path, tmp_path / "log") as link:
        assert (tmp_path / "superexec.secret").stat().st_mode & 0o077 == 0
        with pytest.raises(RunStopped, match="the SuperLink cannot be reached"):
            link.register(tmp_path / "client.pub")
        with pytest.raises(RunStopped, match="the SuperLink cannot be reached"), link.run():
            raise AssertionError("there is no run")


def test_keys_are_not_overwritten_and_not_readable_by_others(tmp_path: Path) -> None:
    keys.make_client_key(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0
    with pytest.raises(FileExistsError, match="not overwritten"):
        keys.make_client_key(tmp_path / "key")
    keys.make_authority(tmp_path)
    keys.make_server_certificate(tmp_path, ["fl.example.org", "10.0.0.1", "::1"])
    for name in (keys.AUTHORITY_KEY, keys.SERVER_KEY):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
    said = subprocess.run(
        ["openssl", "verify", "-CAfile", keys.AUTHORITY, "-verify_ip", "10.0.0.1", keys.SERVER],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    with pytest.raises(ValueError, match="hosts"):
        keys.make_server_certificate(tmp_path, [])
    for host in ("https://fl.example.org", "fl.example.org:8443"):
        with pytest.raises(ValueError, match="must be a name or an address"):
            keys.make_server_certificate(tmp_path, [host])
    (tmp_path / "no.pub").write_text("ssh-rsa nonsense")
    with pytest.raises(ValueError, match="public key"):
        keys.public_pem(tmp_path / "no.pub")
