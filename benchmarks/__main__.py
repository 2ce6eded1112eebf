"""Measure PriRFed against what one would take instead, and write the table.

    python -m benchmarks                      # or: make bench; everything, in about a quarter of an hour
    python -m benchmarks --list
    python -m benchmarks sampling accounting  # these groups only
    python -m benchmarks --quick              # a minute: to see that it works; writes nothing

A group is a file in benchmarks/rows. Peers run in environments of their own in .venv-bench, which are made where they
are missing. Results go to benchmarks/results (table.json, table.md; groups not measured now stay as they are), figures
and the table itself to docs. The exit status is 1 if a wanted figure was missed.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import os
import pkgutil
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import rows as groups
from benchmarks.peers import PeerUnavailable
from benchmarks.table import Row, amount, page, read, surroundings, write

HERE = Path(__file__).parent
RESULTS, DOCS = HERE / "results", HERE.parent / "docs"
BEGIN, END = "<!-- table: written by `make bench` -->", "<!-- end of the table -->"


def names() -> list[str]:
    """All groups, in the order in which they are shown."""
    found = [module.name for module in pkgutil.iter_modules(groups.__path__)]
    return sorted(found, key=lambda name: (getattr(load(name), "PLACE", 50), name))


def load(name: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.rows.{name}")


def measure(name: str, quick: bool, figures: Path | None) -> dict[str, Any]:
    """One group: its module's `rows(quick)`, and `pictures(rows, folder)` where it has that."""
    module = load(name)
    title, _, about = (module.__doc__ or "").partition("\n")
    began, date = time.perf_counter(), datetime.date.today().isoformat()
    measured: list[Row] = []
    versions: dict[str, str] = {}
    try:
        for row in module.rows(quick):
            measured.append(row)
            ratio = "" if row.ratio is None else f", {row.ratio:.3g} x {row.against}"
            shown = "not measured" if row.value is None else amount(row.value, row.unit)
            print(f"  {row.name}: {shown}{ratio}{'' if row.met is not False else '  (missed)'}", file=sys.stderr)
    except PeerUnavailable as error:
        measured.append(Row(name, None, note=f"Left out: {error}"))
    around = surroundings()
    around["versions"] |= getattr(module, "versions", dict)() | versions
    return {
        "title": title.rstrip("."),
        "about": " ".join(about.split()),
        "date": date,
        **around,
        "load": os.getloadavg()[0],
        "seconds": time.perf_counter() - began,
        "quick": quick,
        "rows": [row.to_dict() for row in measured],
        "figures": module.pictures(measured, figures) if figures is not None and hasattr(module, "pictures") else {},
    }


def show(document: Path, table: str) -> None:
    """Put the table into the document, between its marks."""
    text = document.read_text(encoding="utf-8")
    parts = re.split(f"({re.escape(BEGIN)}|{re.escape(END)})", text)
    if len(parts) != 5:
        raise ValueError(f"{document} must hold {BEGIN} and {END} once each")
    document.write_text("".join([parts[0], BEGIN, "\n\n", table, "\n", END, parts[4]]), encoding="utf-8")


def each(chosen: list[str], quick: bool, figures: Path | None) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in chosen:
        print(f"{name} ...", file=sys.stderr, flush=True)
        yield name, measure(name, quick, figures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", help="default: all")
    parser.add_argument("--list", action="store_true", help="say which there are")
    parser.add_argument("--quick", action="store_true", help="small sizes; prints, and writes nothing")
    options = parser.parse_args()
    known = names()
    if options.list:
        for name in known:
            print(f"{name:20} {load(name).__doc__.partition(chr(10))[0]}")
        return 0
    if unknown := [name for name in options.groups if name not in known]:
        parser.error(f"there is no group {', '.join(unknown)}; known are {', '.join(known)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that child processes are stopped then as well
    figures = None if options.quick else DOCS / "figures" / "benchmarks"
    results = {}
    for name, result in each(options.groups or known, options.quick, figures):
        results[name] = result
        if not options.quick:
            write(RESULTS, {name: result})
    if not options.quick:
        kept = read(RESULTS)
        ordered = {name: kept[name] for name in known if name in kept}
        show(DOCS / "benchmarks.md", page(ordered))
    print(page(results))
    return int(any(row["met"] is False for result in results.values() for row in result["rows"]))


if __name__ == "__main__":
    sys.exit(main())
