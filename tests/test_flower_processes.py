"""A SuperLink and client processes on the loopback interface: the simulation's result, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tomli_w
from conftest import ROOT
from faulty_server import POINTS
from federation import EIGENVECTOR, experiment, replayed, session_of, simulated

from pri_rfed import keys
from pri_rfed.coordinator import State
from pri_rfed.experiment.config import Experiment
from pri_rfed.privacy.events import event_from_dict
from server.superlink import QUIET, SuperLink, start_process, stop, tail

pytestmark = pytest.mark.slow

PRIRFED = [sys.executable, "-m", "pri_rfed.cli"]
PATIENCE = 240.0
"""No test waits longer than this for something that must come, in seconds."""


def alive(pids: list[int]) -> list[int]:
    """Which of the processes still run."""
    out = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state != "Z":
            out.append(pid)
    return out


def wait_for(condition: Any, what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)
    return value


def tables(**run: Any) -> dict[str, Any]:
    return EIGENVECTOR | {"run": EIGENVECTOR["run"] | run}


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    """Starts `pri-rfed run --runtime flower` on tables; what it left behind is stopped and is an error."""
    commands: list[subprocess.Popen[bytes]] = []
    seen: set[int] = set()

    def start(config: dict[str, Any], *options: str) -> tuple[subprocess.Popen[bytes], Path]:
        path, out = tmp_path / "config.toml", tmp_path / "run"
        path.write_text(tomli_w.dumps(config))
        command = [*PRIRFED, "run", str(path), "--runtime", "flower", "--out", str(out), *options]
        commands.append(start_process(command, tmp_path / "log"))
        return commands[-1], out

    yield start, seen
    left = alive(sorted(seen))
    for command in commands:
        stop(command)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "processes were left behind"


def finish(process: subprocess.Popen[bytes], seen: set[int]) -> int:
    """Wait for the end of a command; `seen` collects what it started."""

    def ended() -> bool:
        seen.update(session_of(process.pid))
        return process.poll() is not None

    wait_for(ended, "the end of the run")
    assert process.returncode is not None
    return process.returncode


def rounds_kept(out: Path) -> int:
    """How many rounds a run that is killed now would keep."""
    path = out / "checkpoint.npz"
    return State.load(path).round if path.is_file() else 0


def test_four_client_processes_give_the_simulation(started: Any, tmp_path: Path) -> None:
    start, seen = started
    process, out = start(tables(), "--clients", "4")
    assert finish(process, seen) == 0, tail(tmp_path / "log")
    assert len(seen) >= 5, "a SuperLink and four clients"
    expected = simulated(experiment(tables()))
    np.testing.assert_allclose(np.load(out / "point.npy"), expected.point, rtol=0, atol=1e-9)
    privacy = json.loads((out / "privacy.json").read_text())
    events = {group["records"]: event_from_dict(group["local_event"]) for group in privacy["groups"]}
    assert events == expected.local_events
    assert privacy["epsilon_global"] == expected.privacy.epsilon_global
    state = State.load(out / "checkpoint.npz")
    assert (state.participations == expected.participations).all()
    assert json.loads((out / "summary.json").read_text())["runtime"] == "flower"
    logs = "".join((out / "logs" / f"client-{client}.log").read_text() for client in range(4))
    assert logs.count(": answered") == expected.participations.sum()


def test_it_is_interrupted_and_resumed(started: Any, tmp_path: Path) -> None:
    start, seen = started
    process, out = start(tables(rounds=100), "--clients", "2")
    wait_for(lambda: seen.update(session_of(process.pid)) or rounds_kept(out) >= 2, "two rounds")
    process.send_signal(signal.SIGINT)
    assert finish(process, seen) == 130, tail(tmp_path / "log")
    assert "pri-rfed resume" in tail(tmp_path / "log")
    wait_for(lambda: not alive(sorted(seen)), "the end of all processes")
    before = State.load(out / "checkpoint.npz")
    assert 2 <= before.round < 100
    # What is aggregated stays; the run goes on, with other agents in a round that was under way.
    subprocess.run([*PRIRFED, "resume", str(out)], check=True, timeout=PATIENCE, capture_output=True)
    goes_on_as_it_would_have(out, before, experiment(tables(rounds=100)))


def goes_on_as_it_would_have(out: Path, before: State, of: Experiment) -> None:
    """The finished run has the rounds, and accounts for all draws, of the state that it went on from."""
    after = State.load(out / "checkpoint.npz")
    assert after.history[: before.round] == before.history and after.round == of.run.rounds
    assert after.draws[: len(before.draws)] == before.draws
    expected = replayed(of, after.history)
    np.testing.assert_allclose(np.load(out / "point.npy"), expected.point, rtol=0, atol=1e-9)
    assert (after.participations == expected.participations).all()
    rounds = [json.loads(line)["round"] for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert rounds == list(range(1, after.round + 1))


@pytest.mark.parametrize("sampled", [4])
def test_a_server_that_is_killed_at_any_point_of_a_round_goes_on(sampled: int, tmp_path: Path) -> None:
    """In every round at another point. What a draw that was lost has released is accounted for."""
    config, out = tables(rounds=len(POINTS) + 1, sampled=sampled), tmp_path / "run"
    (tmp_path / "config.toml").write_text(tomli_w.dumps(config))
    how = ["--runtime", "flower", "--clients", "2"]
    first, again = ["run", str(tmp_path / "config.toml"), "--out", str(out), *how], ["resume", str(out), *how]
    faulty = [sys.executable, str(Path(__file__).with_name("faulty_server.py"))]
    before: State | None = None
    for t, point in enumerate(POINTS, start=1):
        command = first if before is None else again
        process = start_process([*faulty, point, str(t), "--", *command], tmp_path / "log", {"PYTHONPATH": str(ROOT)})
        assert process.wait(PATIENCE) == -signal.SIGKILL, tail(tmp_path / "log")
        now = State.load(out / "checkpoint.npz")
        # Only at the last point the round is kept; at all others its draw is, as one that came to nothing.
        assert (now.round, len(now.failed)) == ((t, 0) if point == "saved" else (t - 1, 1))
        assert len(now.draws) == 2 * t - 1
        if before is not None:
            assert now.history[: before.round] == before.history and now.draws[: len(before.draws)] == before.draws
        before = now
    assert before is not None
    subprocess.run([*PRIRFED, "resume", str(out)], check=True, timeout=PATIENCE, capture_output=True)
    goes_on_as_it_would_have(out, before, experiment(config))
    privacy = json.loads((out / "privacy.json").read_text())
    assert sum(entry["count"] for entry in privacy["rounds"]) == len(before.draws) + 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
def test_a_run_that_is_ended_leaves_nothing_behind(number: int, started: Any) -> None:
    start, seen = started
    process, out = start(tables(rounds=1000), "--clients", "2")
    wait_for(lambda: seen.update(session_of(process.pid)) or rounds_kept(out) >= 1, "a round")
    process.send_signal(number)
    assert finish(process, seen) == (130 if number == signal.SIGTERM else -number)
    wait_for(lambda: not alive(sorted(seen)), "the end of all processes")
    assert State.load(out / "checkpoint.npz").round >= 1


# Who may connect ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuperLink]:
    folder = tmp_path_factory.mktemp("link")
    keys.make_authority(folder)
    keys.make_server_certificate(folder, ["127.0.0.1"])
    with SuperLink(folder, folder, folder / "superlink.log") as running:
        yield running


def connect(link: SuperLink, folder: Path, ca: Path, key: Path) -> tuple[int, str]:
    """Exit status and output of a client process that tries to connect."""
    from test_participant import make

    command = [*PRIRFED, "client", str(make(folder / "owner")), "--server", link.address]
    done = subprocess.run(
        [*command, "--ca", str(ca), "--key", str(key)],
        env=os.environ | QUIET,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_an_unregistered_key_is_turned_away(link: SuperLink, tmp_path: Path) -> None:
    keys.make_client_key(tmp_path / "key")
    status, said = connect(link, tmp_path, link.folder / keys.AUTHORITY, tmp_path / "key")
    assert status != 0 and "305" in said and "is its key registered there" in said


def test_another_authority_is_not_trusted(link: SuperLink, tmp_path: Path) -> None:
    keys.make_client_key(tmp_path / "key")
    link.register(tmp_path / "key.pub")
    keys.make_authority(tmp_path / "other")
    status, said = connect(link, tmp_path, tmp_path / "other" / keys.AUTHORITY, tmp_path / "key")
    assert status != 0 and "certificate verify failed" in said


def test_no_key_is_turned_away(link: SuperLink) -> None:
    context = httpx.Client(verify=str(link.folder / keys.AUTHORITY), trust_env=False)
    with context:
        for path in ("activate-node", "pull-messages", "register-node"):
            answer = context.post(f"https://{link.address}/v1/fleet/{path}", content=b"")
            assert answer.status_code >= 400, path


def test_plain_text_is_turned_away(link: SuperLink) -> None:
    with httpx.Client(trust_env=False) as client, pytest.raises(httpx.HTTPError):
        client.get(f"http://{link.address}/v1/fleet/pull-messages")


def test_it_listens_on_the_loopback_interface_alone(link: SuperLink) -> None:
    port = f"{link.port:04X}"
    listening = [
        line.split()[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    assert [address for address in listening if address.endswith(f":{port}")] == [f"0100007F:{port}"]
