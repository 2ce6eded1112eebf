"""The Python examples of the README and the docs run, and print what they say."""

import inspect
import io
import json
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import test_manifold_laws

from pri_rfed.problems import PROBLEMS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [
    pytest.param(code, output, id=f"{page.stem}-{i}")
    for page in PAGES
    if page.stem != "own-data"  # which has a test of its own
    for i, (code, output) in enumerate(
        re.findall(r"```python\n(.*?)```(?:\n\nprints\n\n```text\n(.*?)```)?", page.read_text(encoding="utf-8"), re.S)
    )
]


@pytest.mark.parametrize(("code", "output"), EXAMPLES)
def test_example(code, output):
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(code, "example", "exec"), {"__name__": "example"})
    if output:
        assert out.getvalue() == output


def test_the_readme_shows_what_the_demo_prints(tmp_path):
    shown = re.search(r"`make demo` ends with\n\n```text\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    command = [Path(sys.executable).with_name("pri-rfed"), "run", ROOT / "configs" / "quickstart.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    def lasting(text):
        return re.sub(r"[\d.e-]+ s of|quickstart-\d+-\d+", "...", text)

    assert lasting(done.stdout) == lasting(shown[1])


def test_the_budget_that_a_federation_takes_is_the_one_that_is_shown():
    page = (ROOT / "docs" / "deployment.md").read_text("utf-8")
    command = re.search(r"^    pri-rfed (calibrate .*)$", page, re.M)[1].split()
    done = subprocess.run([Path(sys.executable).with_name("pri-rfed"), *command], capture_output=True, text=True)
    (row,) = (line.split() for line in done.stdout.splitlines() if line.startswith("rdp"))
    budget = re.search(r"--epsilon ([\d.]+) --delta", page)[1]
    assert row[2] in page and float(row[2]) < float(budget) and f"\nepsilon = {budget}\n" in page


def test_there_is_an_example():
    assert EXAMPLES


def test_the_problem_of_ones_own_runs_from_a_configuration(tmp_path):
    page = (ROOT / "docs" / "own-problem.md").read_text(encoding="utf-8")
    name = re.search(r'name = "((\w+):\w+)"', page)
    code = re.search(r"```python\n(.*?)\n\n\nrng =", page, re.S)
    (tmp_path / f"{name[2]}.py").write_text(code[1], encoding="utf-8")
    config = (ROOT / "configs" / "quickstart.toml").read_text(encoding="utf-8")
    (tmp_path / "own.toml").write_text(config.replace("principal-eigenvector", name[1]), encoding="utf-8")
    command = [Path(sys.executable).with_name("pri-rfed"), "run", "own.toml", "--set", "run.rounds=2", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["problem"] == "geometric-median"


def test_the_table_of_ones_own(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "own-data.md").read_text(encoding="utf-8")
    rng, sites = np.random.default_rng(0), ["Aachen", "Bonn", "Essen", "Kiel", "Köln", "Mainz", "Trier", "Ulm"]
    header = "site," + ",".join(f"x{i}" for i in range(20))
    lines = [f"{rng.choice(sites)}," + ",".join(f"{x:.5f}" for x in rng.standard_normal(20)) for _ in range(3000)]
    (tmp_path / "patients.csv").write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    (tmp_path / "patients.toml").write_text(re.search(r"```toml\n(.*?)```", page, re.S)[1], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for command in re.findall(r"^    pri-rfed (.*)$", page, re.M):
        subprocess.run([Path(sys.executable).with_name("pri-rfed"), *command.split()], check=True, capture_output=True)
    assert (tmp_path / "runs" / "patients" / "report.html").is_file()
    code, output = re.search(r"```python\n(.*?)```\n\nprints\n\n```text\n(.*?)```", page, re.S).groups()
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(code, "example", "exec"), {"__name__": "example"})
    assert out.getvalue() == output
    assert set(re.findall(r"^\| `(.*?)`.* \|$", page, re.M)) <= set(PROBLEMS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_project_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_manifold_of_ones_own_obeys_the_laws():
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)\n\n\ntorus, rng =", page, re.S)
    names = {"__name__": "example"}
    exec(compile(code[1], "example", "exec"), names)
    laws = [
        law
        for name, law in vars(test_manifold_laws).items()
        if name.startswith("test_") and list(inspect.signature(law).parameters) == ["name", "m"]
    ]
    kept = 0
    for law in laws:
        if not {"EXAMPLES", "MANIFOLDS"} & set(law.__code__.co_names):  # it has no line there
            law("flat-torus", names["FlatTorus"](3))
            kept += 1
    assert kept >= 15
