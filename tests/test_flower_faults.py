"""What goes wrong with real clients, one fault at a time: the server goes on, and every ledger is right."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from conftest import ROOT
from federation import EIGENVECTOR
from test_flower_server import AGENTS, PATIENCE, PRIRFED, Wards, tables
from test_participant import make

from pri_rfed import keys
from pri_rfed.coordinator import State
from pri_rfed.privacy.ledger import Ledger
from server.superlink import start_process, stop, tail

pytestmark = pytest.mark.slow

ROUNDS = 2
VICTIM = 0


class Faulty(Wards):
    """Every agent trains in every round; the client of ward-0 has a fault."""

    def __init__(self, folder: Path):
        super().__init__(folder, epsilon=20.0)
        self.fault: list[str] = []
        self.awaited = ""
        """The other clients start when the faulty one's log says this."""
        self.configure()

    def configure(self, rounds: int = ROUNDS, sampled: int = AGENTS, **exchange: Any) -> None:
        run = {"name": "wards", "rounds": rounds, "sampled": sampled}
        changed = tables(self.folder, run=run)
        changed["federation"]["exchange"] |= exchange
        (self.folder / "federation.toml").write_text(tomli_w.dumps(changed))

    def start_clients(self) -> None:
        if self.fault and (VICTIM not in self.clients or self.clients[VICTIM].poll() is not None):
            self.clients[VICTIM] = self.start_client(self.fault)
        if not self.awaited or self.awaited in self.said():
            super().start_clients()

    def said(self) -> str:
        """What the faulty client has logged."""
        return (self.folder / f"client-{VICTIM}.log").read_text()

    def start_client(self, fault: list[str]) -> subprocess.Popen[bytes]:
        """Another client of ward-0."""
        script = [str(Path(__file__).with_name("faulty_client.py")), *fault, "--"] if fault else []
        command = [sys.executable, *(script or [*PRIRFED[1:], "client"])]
        policy = str(self.folder / f"home-{VICTIM}" / "policy.toml")
        options = ["--server", f"127.0.0.1:{self.port}", "--ca", str(self.keys / keys.AUTHORITY)]
        key = ["--key", str(self.folder / f"ward-{VICTIM}")]
        return start_process(
            [*command, policy, *options, *key], self.folder / f"client-{VICTIM}.log", {"PYTHONPATH": str(ROOT)}
        )

    def finish(self) -> State:
        """The state at the end of a run that comes to its end in spite of the fault."""
        self.start_server()
        self.until(self.ended)
        assert self.server is not None and self.server.returncode == 0, tail(self.folder / "server.log")
        state = State.load(self.out / "checkpoint.npz")
        assert state.round == len(state.history) and not state.failed
        return state


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Faulty]:
    running = Faulty(tmp_path)
    try:
        yield running
    finally:
        running.stop()


def refused(state: State) -> list[dict[int, str]]:
    """Which agents each round went without, and why."""
    return [{int(r["agent"]): str(r["reason"]) for r in record["refused"]} for record in state.history]


def test_a_reply_that_is_announced_and_never_sent(faulty: Faulty) -> None:
    faulty.fault = ["never_sends"]
    state = faulty.finish()
    for reasons in refused(state):
        assert list(reasons) == [VICTIM] and "unavailable" in reasons[VICTIM], "the honest replies are kept"
    # It has trained, and the server counts it, too.
    assert state.participations.tolist() == faulty.releases() == [ROUNDS] * AGENTS


def test_a_reply_that_comes_too_late(faulty: Faulty) -> None:
    faulty.configure(timeout=12.0)
    faulty.fault = ["slow", "20"]
    state = faulty.finish()
    first, second = refused(state)
    assert list(first) == [VICTIM] and not second, "the late one is dropped"
    # Which of the two says it first: this server, or the SuperLink, where the message has run out.
    assert first[VICTIM] == "no reply within 12 s" or "Message Unavailable" in first[VICTIM]
    assert state.participations.tolist() == faulty.releases() == [ROUNDS] * AGENTS


def test_a_replayed_reply(faulty: Faulty) -> None:
    faulty.fault = ["replays"]
    state = faulty.finish()
    first, second = refused(state)
    assert not first
    assert list(second) == [VICTIM] and "it answers another plan" in second[VICTIM]
    assert state.participations.tolist() == faulty.releases() == [ROUNDS] * AGENTS


def test_a_reply_that_is_sent_again_as_it_was(faulty: Faulty) -> None:
    answers = faulty.folder / "answers"
    faulty.configure(rounds=3)
    faulty.fault = ["resends", str(answers)]
    state = faulty.finish()
    assert not any(refused(state)) and state.participations.tolist() == faulty.releases() == [3] * AGENTS
    # After round 1 its own, after round 2 those of both rounds: the server has them, and takes none a second time.
    said = answers.read_text().splitlines()
    assert len(said) >= 3 and set(said) == {"0 objects wanted"}


def test_a_client_of_another_version(faulty: Faulty) -> None:
    faulty.fault = ["other_version"]
    state = faulty.finish()
    for reasons in refused(state):
        assert list(reasons) == [VICTIM]
        assert "version 1 of the protocol" in reasons[VICTIM] and "version 99 (project 7.0)" in reasons[VICTIM]
        assert "install the same version" in reasons[VICTIM]
        assert "declined" in reasons[VICTIM]
    assert state.participations.tolist() == faulty.releases() == [0, ROUNDS, ROUNDS], "it has not trained"
    log = faulty.said()
    assert log.count("declined what the server sent, nothing was trained: it speaks version 1") == ROUNDS


def test_a_full_disk_at_the_ledger(faulty: Faulty) -> None:
    faulty.fault = ["full_disk"]
    state = faulty.finish()
    for reasons in refused(state):
        assert list(reasons) == [VICTIM] and "its ledger does not vouch for the release" in reasons[VICTIM]
    # Nothing left, nothing is counted, and the ledger is whole: `releases` reads and checks it.
    assert state.participations.tolist() == faulty.releases() == [0, ROUNDS, ROUNDS]


def test_a_client_that_is_killed_between_training_and_upload(faulty: Faulty) -> None:
    faulty.configure(rounds=1, timeout=15.0)
    faulty.fault = ["dies", str(faulty.folder / "died")]
    state = faulty.finish()
    assert VICTIM in refused(state)[0]
    # Its ledger has counted what never arrived, and so has the server.
    assert faulty.releases()[VICTIM] == state.participations[VICTIM] == 1


def test_two_clients_with_one_key(faulty: Faulty) -> None:
    """With one ledger between them: one is turned away, or each plan goes to one of them; it is counted once."""
    rounds = 6
    faulty.configure(rounds=rounds)
    twin = faulty.start_client([])
    try:
        state = faulty.finish()
    finally:
        stop(twin)
    assert not any(refused(state))
    assert state.participations.tolist() == faulty.releases() == [rounds] * AGENTS


@pytest.mark.parametrize(("seconds", "fine"), [("-200", True), ("60", False), ("-400", False)])
def test_a_clock_that_is_wrong(seconds: str, fine: bool, faulty: Faulty) -> None:
    """Three minutes behind do no harm; a clock that is ahead is turned away, and the run needs nobody's."""
    faulty.configure(sampled=AGENTS if fine else AGENTS - 1, draw_from="connected")
    faulty.fault = ["clock", seconds]
    faulty.awaited = "" if fine else "refuses a call"  # else the run may end before it tries a second time
    state = faulty.finish()
    assert not any(refused(state))
    assert state.participations.tolist() == faulty.releases() == [ROUNDS if fine else 0, ROUNDS, ROUNDS]
    log = faulty.said()
    assert ("connected to" in log) == fine
    if not fine:
        said = re.search(r"refuses a call; if so, .* clock is (\d+) s (ahead of|behind) the server's.*NTP", log)
        assert said is not None and abs(int(said[1]) - abs(int(seconds))) <= 2
        assert said[2] == ("ahead of" if int(seconds) > 0 else "behind")


# Networks -------------------------------------------------------------------------------------------------------------


def permitted(*command: str) -> bool:
    """Whether a command works here: a container may lack the right to make networks, or the program."""
    try:
        return subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False).returncode == 0
    except OSError:
        return False


ALONE = ["unshare", "--map-root-user", "--net"]
LOOPBACK = [ALONE] if permitted(*ALONE, "ip", "link", "set", "lo", "up") else []


@pytest.mark.parametrize("alone", LOOPBACK, ids=["no network"])
def test_it_connects_to_nothing_but_the_loopback_interface(alone: list[str], tmp_path: Path) -> None:
    """In a network that has no way out, a run works, and no packet looks for one."""
    (tmp_path / "config.toml").write_text(tomli_w.dumps(EIGENVECTOR))
    run = [*PRIRFED, "run", str(tmp_path / "config.toml"), "--runtime", "flower", "--clients", "2"]
    script = 'ip link set lo up && "$@" && cat /proc/net/snmp /proc/net/snmp6'
    process = start_process([*alone, "sh", "-c", script, "sh", *run, "--out", str(tmp_path / "run")], tmp_path / "log")
    try:
        assert process.wait(PATIENCE) == 0, tail(tmp_path / "log")
    finally:
        stop(process)
    assert (tmp_path / "run" / "summary.json").is_file()
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    names, counts = (line for line in lines if line[:1] == ["Ip:"])
    assert dict(zip(names, counts, strict=True))["OutNoRoutes"] == "0"
    assert ["Ip6OutNoRoutes", "0"] in lines


def on_machine(name: str) -> list[str]:
    """What runs a command on a machine made by `machines`."""
    return ["ip", "netns", "exec", name]


def may_make_machines() -> bool:
    name = f"prirfed-probe-{os.getpid()}"
    made = permitted("ip", "netns", "add", name)
    fine = made and permitted(*on_machine(name), "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1")
    return permitted("ip", "netns", "del", name) and fine if made else False


SERVER, PORT = "10.77.0.1", 8443
PROBE = """
import errno, socket, sys
import httpx
host, ca = sys.argv[1:]
answering = []
for port in range(1, 65536):
    with socket.socket() as probe:
        probe.settimeout(20)
        if probe.connect_ex((host, port)) != errno.ECONNREFUSED:
            answering.append(port)
print(answering)
with httpx.Client(verify=ca, trust_env=False) as client:
    for path in ("control/list-runs", "runtime/acquire-task", "fleet/register-node", "fleet/pull-messages"):
        headers = {"content-type": "application/protobuf"}
        print(path, client.post(f"https://{host}:8443/v1/{path}", content=b"", headers=headers).status_code)
"""


@contextmanager
def machines(number: int) -> Iterator[list[str]]:
    """Network namespaces with addresses of their own: a server's, and `number` others that reach only that."""
    names = [f"prirfed-{os.getpid()}-{i}" for i in range(number + 1)]

    def ip(*command: str) -> None:
        subprocess.run(["ip", *command], check=True, capture_output=True, timeout=PATIENCE)

    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", names[0], "address", "add", f"{SERVER}/32", "dev", "lo")
        for i, name in enumerate(names[1:], start=1):
            ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"eth{i}", "netns", names[0])
            ip("-n", names[0], "address", "add", f"10.77.{i}.1/24", "dev", f"eth{i}")
            ip("-n", names[0], "link", "set", f"eth{i}", "up")
            ip("-n", name, "address", "add", f"10.77.{i}.2/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "route", "add", SERVER, "via", f"10.77.{i}.1")
        yield names
    finally:
        for name in names:
            permitted("ip", "netns", "del", name)


@pytest.mark.parametrize("number", [2] if may_make_machines() else [])
def test_separate_machines(number: int, tmp_path: Path) -> None:
    """The steps of docs/deployment.md, each party on a machine of its own and in a folder of its own."""
    operator, out = tmp_path / "operator", tmp_path / "operator" / "run"
    operator.mkdir()
    with machines(number + 1) as (server, *others), ExitStack() as stack:

        def run(machine: str, *command: str) -> str:
            done = subprocess.run(
                [*on_machine(machine), *command], capture_output=True, text=True, timeout=PATIENCE, check=False
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        run(server, *PRIRFED, "keys", "server", str(operator), "--host", SERVER)
        for i, machine in enumerate(others[:number]):
            home = tmp_path / f"owner-{i}"
            home.mkdir()
            run(machine, *PRIRFED, "keys", "client", str(home / "key"))
            budget = ["--dataset", "ward/2026", "--epsilon", "20", "--delta", "1e-5"]
            run(machine, *PRIRFED, "ledger", "set-budget", "--ledger", str(home / "ledger"), *budget)
            make(home, agent=f"ward-{i}", epsilon=20.0)
            shutil.copy(home / "key.pub", operator / f"ward-{i}.pub")
            shutil.copy(operator / keys.AUTHORITY, home)
            options = ["--server", f"{SERVER}:{PORT}", "--ca", str(home / keys.AUTHORITY), "--key", str(home / "key")]
            command = [*on_machine(machine), *PRIRFED, "client", str(home / "policy.toml"), *options]
            stack.callback(stop, start_process(command, home / "log"))
        config = tables(operator, run={"name": "wards", "rounds": ROUNDS, "sampled": number + 1})
        # The last agent is nobody's yet: the server waits for it while a stranger looks around.
        keys.make_client_key(operator / f"ward-{number}")
        (operator / "federation.toml").write_text(tomli_w.dumps(config))
        options = ["--keys", str(operator), "--out", str(out), "--listen", f"0.0.0.0:{PORT}"]
        command = [*on_machine(server), *PRIRFED, "server", str(operator / "federation.toml"), *options]
        process = start_process(command, operator / "log")
        stack.callback(stop, process)
        deadline = time.monotonic() + PATIENCE
        while not all("connected to" in tail(tmp_path / f"owner-{i}" / "log") for i in range(number)):
            assert time.monotonic() < deadline and process.poll() is None, tail(operator / "log")
            time.sleep(0.2)
        seen = run(others[-1], sys.executable, "-c", PROBE, SERVER, str(operator / keys.AUTHORITY)).splitlines()
        assert seen == [
            f"[{PORT}]", "control/list-runs 403", "runtime/acquire-task 403", "fleet/register-node 403",
            "fleet/pull-messages 401",
        ]  # fmt: skip
        home = tmp_path / f"owner-{number}"
        policy = str(make(home, agent=f"ward-{number}", epsilon=20.0))
        options = ["--server", f"{SERVER}:{PORT}", "--ca", str(operator / keys.AUTHORITY)]
        command = [*on_machine(others[-1]), *PRIRFED, "client", policy, *options]
        stack.callback(stop, start_process([*command, "--key", str(operator / f"ward-{number}")], home / "log"))
        assert process.wait(PATIENCE) == 0, tail(operator / "log")
        state = State.load(out / "checkpoint.npz")
        assert state.round == ROUNDS and state.participations.tolist() == [ROUNDS] * AGENTS
        for i in range(AGENTS):
            ledger = tmp_path / f"owner-{i}" / "ledger"
            assert Ledger.open(ledger).status("ward/2026").releases == ROUNDS
