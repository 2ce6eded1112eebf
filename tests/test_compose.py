"""`docker compose up`: what its files say, everywhere; and where a container engine answers, that it runs.

The run leaves the image behind, which the next build starts from, and nothing else.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import yaml
from conftest import ROOT
from engine import ENGINE
from federation import experiment, simulated

from pri_rfed.meeting import PORT
from server.superlink import start_process, stop, tail

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
CONTEXT = ("Dockerfile", ".dockerignore", "docker-compose.yml", "pyproject.toml", "constraints.txt", "README.md")
FOLDERS = ("pri_rfed", "server", "clients")
PATIENCE = 900.0
"""For a build without anything to start from and a run, in seconds."""


def instructions() -> list[tuple[str, str]]:
    """The lines of the Dockerfile as (instruction, arguments)."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_no_container_is_reachable_or_has_rights(name: str) -> None:
    service = COMPOSE["services"][name]
    assert not {"ports", "network_mode", "privileged", "pid", "ipc", "devices"} & set(service)
    assert service["networks"] == ["federation"] and COMPOSE["networks"]["federation"]["internal"] is True
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    for volume in service.get("volumes", ()):
        source = volume.split(":")[0]
        assert source in COMPOSE["volumes"] or source in ("./runs", "./configs"), volume
    # Only the server sees a folder of the host, and writes only runs there.
    assert name == "server" or not any(volume.startswith((".", "/")) for volume in service.get("volumes", ()))


def test_nobody_works_as_root() -> None:
    client, server = COMPOSE["services"]["client"], COMPOSE["services"]["server"]
    assert "user" not in client and "cap_add" not in client, "the client is the image's user"
    users = [arguments for instruction, arguments in instructions() if instruction == "USER"]
    assert users and users[-1].isdigit() and int(users[-1]) > 0
    # The server begins as root to find out whose folder it writes into, and then is that user.
    assert server["cap_add"] == ["SETUID", "SETGID"]
    script = server["entrypoint"][-2]
    assert re.search(r'if \[ "\$\$id" = 0 \]; then .*id=\d{4,};', script)
    assert 'exec setpriv --reuid="$$id" --regid="$$id" --clear-groups' in script


def test_clients_wait_until_the_server_is_healthy() -> None:
    client = COMPOSE["services"]["client"]
    assert client["depends_on"] == {"server": {"condition": "service_healthy"}} and client["scale"] == 4
    checks = [arguments for instruction, arguments in instructions() if instruction == "HEALTHCHECK"]
    assert len(checks) == 1 and '"pri-rfed", "health"' in checks[0]
    assert not any(service.get("healthcheck", {}).get("disable") for service in COMPOSE["services"].values())


def test_the_command_fails_with_the_run() -> None:
    """`up` itself fails only for containers that others wait for."""
    waits = COMPOSE["services"]["result"]
    assert waits["depends_on"] == {"server": {"condition": "service_completed_successfully"}}
    assert waits["entrypoint"] == ["true"] and "command" not in waits


def test_the_configuration_is_chosen_by_the_environment() -> None:
    chosen = COMPOSE["services"]["server"]["command"][1]
    default = re.fullmatch(r"\$\{PRIRFED_CONFIG:-(.+)\}", chosen)
    assert default is not None and (ROOT / default[1]).is_file()


def test_the_image_is_pinned_and_small() -> None:
    stages = [arguments.split() for instruction, arguments in instructions() if instruction == "FROM"]
    assert len(stages) == 2, "what builds stays out of the image"
    for stage in stages:
        assert re.fullmatch(r"python:3\.\d+-slim(@sha256:[0-9a-f]{64})?", stage[0])
    for instruction, arguments in instructions():
        for command in re.findall(r"pip install ([^&]*)", arguments) if instruction == "RUN" else ():
            assert "--constraint constraints.txt" in command or "--no-deps" in command
        assert instruction != "ADD" and not (instruction == "COPY" and arguments.startswith(". "))
        assert instruction != "EXPOSE" or arguments == str(PORT)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert ignored[0] == "**", "what is not named stays out"
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for needed in project["dependencies"]:
        name = re.split(r"[<>=]", needed)[0]
        assert re.search(rf"^{name.replace('-', '[-_]')}==", pins, re.M | re.I), f"{name} is not pinned"


def test_the_check_reads_whole_instructions() -> None:
    assert instructions()[0] == ("FROM", "python:3.11-slim AS build")
    assert any(i == "RUN" and "pip install --no-cache-dir --no-deps ." in a for i, a in instructions())


def context(folder: Path) -> None:
    """Copy into `folder` what an image is made of."""
    for name in CONTEXT:
        shutil.copy(ROOT / name, folder / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("configs", "runs"):
        (folder / name).mkdir(mode=0o755)


def up(folder: Path, config: str, *options: str) -> int:
    """The exit status of `docker compose up` with a configuration; its output is in `folder`/log. Nothing stays."""
    assert ENGINE is not None
    project, log = f"pri-rfed-test-{os.getpid()}", folder / "log"
    command = [*ENGINE, "--project-directory", str(folder), "-f", str(folder / "docker-compose.yml"), "-p", project]
    environment = {"PRIRFED_CONFIG": config}
    subprocess.run([*command, "config", "-q"], check=True, timeout=60, env={**os.environ, **environment})
    process = start_process([*command, "up", "--build", *options], log, environment)
    try:
        return process.wait(PATIENCE)
    finally:
        stop(process, 30.0)
        subprocess.run([*command, "down", "--volumes", "--remove-orphans"], check=True, timeout=120)
        assert not left_behind(project)


def left_behind(project: str) -> list[str]:
    """Containers, networks and volumes of a project."""
    label = f"label=com.docker.compose.project={project}"
    lists = (["ps", "-aq"], ["network", "ls", "-q"], ["volume", "ls", "-q"])
    commands = (["docker", *words, "--filter", label] for words in lists)
    return [line for c in commands for line in subprocess.check_output(c, text=True, timeout=60).split()]


def short(folder: Path) -> dict[str, Any]:
    """The quickstart with three rounds, as configs/short.toml."""
    tables: dict[str, Any] = tomllib.loads((ROOT / "configs" / "quickstart.toml").read_text(encoding="utf-8"))
    tables["run"] |= {"name": "short", "rounds": 3}
    (folder / "configs" / "short.toml").write_text(tomli_w.dumps(tables), encoding="utf-8")
    return tables


ENDINGS: dict[str, tuple[str, list[str]]] = {
    "no client comes": ("configs/short.toml", ["--scale", "client=0"]),
    "no such configuration": ("configs/absent.toml", []),
}

if ENGINE is not None:

    @pytest.mark.slow
    @pytest.mark.parametrize("options", [[], ["--scale", "client=8", "--exit-code-from", "server"]], ids=" ".join)
    def test_it_runs_and_leaves_the_run_folder_on_the_host(options: list[str], tmp_path: Path) -> None:
        context(tmp_path)
        tables = short(tmp_path)
        assert up(tmp_path, "configs/short.toml", *options) == 0, tail(tmp_path / "log", 60)
        (run,) = (tmp_path / "runs").iterdir()
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        assert summary["private"] and summary["runtime"] == "containers" and summary["rounds"] == 3
        owner = (tmp_path / "runs").stat().st_uid or 10001
        assert {path.stat().st_uid for path in (run, *run.iterdir())} == {owner}
        expected = simulated(experiment(tables)).point
        np.testing.assert_allclose(np.load(run / "point.npy"), expected, rtol=0, atol=1e-9)
        said = (tmp_path / "log").read_text(encoding="utf-8", errors="replace")
        clients = set(re.findall(r"(client[-_]\d+) .*connected to server", said))
        assert "round 3/3" in said and len(clients) == (8 if "--scale" in options else 4)

    @pytest.mark.slow
    @pytest.mark.parametrize("ending", ENDINGS)
    def test_it_ends_with_the_status_of_a_run_that_fails(ending: str, tmp_path: Path) -> None:
        config, options = ENDINGS[ending]
        context(tmp_path)
        short(tmp_path)
        assert up(tmp_path, config, *options) == 1, tail(tmp_path / "log", 60)
        assert not list((tmp_path / "runs").glob("*/summary.json"))
