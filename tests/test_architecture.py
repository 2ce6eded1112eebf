"""Who may import whom, and that nobody touches global random state."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGES = ("pri_rfed", "server", "clients")
FOLDERS = (*PACKAGES, "tests", "benchmarks")
ACCOUNTING = {"dp_accounting", "autodp"}
GENERATORS = {"Generator", "PCG64DXSM", "PCG64", "SeedSequence", "BitGenerator", "default_rng"}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imported(tree: ast.AST, package: str = "") -> Iterator[str]:
    """The full names of all modules, and of all names out of modules, that a file imports, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def imports_of(path: Path) -> set[str]:
    package = ".".join(path.relative_to(ROOT).parts[:-1])
    return set(imported(ast.parse(path.read_text(encoding="utf-8")), package))


def belongs(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def forbidden(path: Path) -> set[str]:
    """What this file imports and must not."""
    place = path.relative_to(ROOT).parts
    modules = imports_of(path)
    bad: set[str] = set()
    if place[0] == "pri_rfed" or (place[0] == "benchmarks" and not place[1].startswith("flower_")):
        bad |= {m for m in modules if belongs(m, "flwr")}
    if place[0] == "pri_rfed":
        bad |= {m for m in modules if belongs(m, "benchmarks", "tests")}
        if place[1] not in ("cli.py", "commands"):
            bad |= {m for m in modules if belongs(m, "server", "clients")}
    if place[0] == "server":
        bad |= {m for m in modules if belongs(m, "clients")}
    if place[0] == "clients":
        bad |= {m for m in modules if belongs(m, "server")}
    if place[0] in PACKAGES and place[:2] != ("pri_rfed", "privacy"):
        bad |= {m for m in modules if belongs(m, *ACCOUNTING)}
    if place[:2] == ("pri_rfed", "manifolds"):
        bad |= {m for m in modules if belongs(m, "pri_rfed") and not belongs(m, "pri_rfed.manifolds")}
        bad -= {"pri_rfed"}
    return bad


def global_randomness(tree: ast.AST) -> Iterator[str]:
    """Uses of `numpy.random` other than its generator classes, of the module `random`, or of a generator without a
    seed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("np.random", "numpy.random"):
            if node.attr not in GENERATORS:
                yield ast.unparse(node)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name == "random")
        elif isinstance(node, ast.ImportFrom):
            if node.module == "random" and not node.level:
                yield "random"
            if node.module == "numpy.random":
                yield from (alias.name for alias in node.names if alias.name not in GENERATORS)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("default_rng") and not node.args:
            yield f"{ast.unparse(node.func)}() without a seed"


@pytest.mark.parametrize("path", sources(*FOLDERS), ids=lambda path: str(path.relative_to(ROOT)))
def test_file(path: Path) -> None:
    assert not forbidden(path)
    assert not list(global_randomness(ast.parse(path.read_text(encoding="utf-8"))))


def test_the_check_sees_what_it_forbids() -> None:
    tree = ast.parse(
        "import numpy as np\nimport random\nfrom . import clipping\nfrom ..privacy import events\n"
        "def f():\n    import flwr.server\n    np.random.seed(0)\n    np.random.default_rng()\n"
        "    return np.random.default_rng(1)\n"
    )
    assert {"flwr.server", "pri_rfed.problems.clipping", "pri_rfed.privacy.events"} <= set(
        imported(tree, "pri_rfed.problems")
    )
    assert sorted(global_randomness(tree)) == ["np.random.default_rng() without a seed", "np.random.seed", "random"]
