"""Other software, measured in environments of its own.

A script in this folder runs with an environment's Python: it takes one JSON argument and prints one line of JSON.
Environments have pinned packages and lie in .venv-bench; `python -m benchmarks` makes them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDER = HERE.parent.parent / ".venv-bench"
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "geometry": ("geomstats==2.8.0", "pymanopt==2.2.1", "numpy==2.3.5", "scipy==1.16.3"),
    "accounting": ("dp-accounting==0.6.0", "autodp==0.2.3.1", "numpy==2.4.6", "scipy==1.17.1"),
    "flower": ("flwr[simulation]==1.41.0", "numpy==2.4.6"),
}
"""With the newest NumPy that each works with."""


class PeerUnavailable(RuntimeError):
    """Its environment could not be made, or its script failed."""


def python(environment: str) -> Path:
    """The interpreter of an environment, which is made where it is missing or has other packages."""
    folder, wanted = FOLDER / environment, "\n".join(ENVIRONMENTS[environment])
    interpreter, mark = folder / "bin" / "python", folder / "packages"
    if mark.is_file() and mark.read_text() == wanted and interpreter.exists():
        return interpreter
    print(f"  making the environment {environment}: {', '.join(ENVIRONMENTS[environment])}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)], 300)
    _run([str(interpreter), "-m", "pip", "install", "--quiet", *ENVIRONMENTS[environment]], 1200)
    mark.write_text(wanted)
    return interpreter


def run(environment: str, script: Path | str, arguments: Mapping[str, Any], patience: float = 600.0) -> Any:
    """What the script makes of the arguments. Raises PeerUnavailable."""
    path = HERE / script  # an absolute path stays as it is
    said = _run([str(python(environment)), str(path), json.dumps(arguments)], patience)
    return json.loads(said.strip().splitlines()[-1])


def versions(environment: str) -> dict[str, str]:
    """What is pinned in an environment, with the NumPy that it has there."""
    pinned = dict(package.split("==") for package in ENVIRONMENTS[environment])
    numpy = pinned.pop("numpy")
    pinned.pop("scipy", None)
    return {name: f"{version} (with numpy {numpy})" for name, version in pinned.items()}


def _run(command: list[str], patience: float) -> str:
    environment = os.environ | {"GEOMSTATS_BACKEND": "numpy"}
    environment.pop("PYTHONPATH", None)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience, env=environment, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerUnavailable(f"{Path(command[0]).name}: {error}") from error
    if done.returncode:
        raise PeerUnavailable(f"{' '.join(command[:3])} failed: {done.stderr.strip()[-600:]}")
    return done.stdout
