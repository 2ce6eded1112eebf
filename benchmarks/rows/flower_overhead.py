"""A round of real processes beside its training.

PriRFed's runtime `flower` against Flower's own processes, a SuperLink and SuperNodes with all their own settings, and
its strategy FedAvg. Both send a point of 64 numbers to every client and back, over TLS and on one machine, to clients
with keys; training is next to nothing. PriRFed's clients check their policy and write their ledger as always, and its
server checks every reply, accounts and saves its state. A round lasts from the end of one aggregation to the end of the
next; the first, in which processes warm up, is left out. At 2 clients Flower's time is mostly the pauses of its
polling; at 8 it is the process started for each message.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.flower_overhead import compare, quickstart
from benchmarks.table import Row, limited

PLACE = 90
WANTED = {2: 8.0, 8: 5.0}
"""The least ratio wanted, by the number of clients."""


def rows(quick: bool) -> Iterator[Row]:
    if quick:
        yield Row("a round of real processes", None, note="Left out of quick runs: it takes minutes.")
        return
    note = "Medians, one after the other in the same run."
    with tempfile.TemporaryDirectory(prefix="pri-rfed-bench-") as folder:
        for clients, wanted in WANTED.items():
            both = compare(clients, {"prirfed": 30, "flower": 9}, Path(folder))
            ours, theirs = both["prirfed"], both["flower"]
            label = f"a round, {clients} clients"
            yield Row(
                label, ours["median_seconds"], "Flower with FedAvg", theirs["median_seconds"], wanted, note=note,
                details=[both],
            )  # fmt: skip
        run = quickstart(Path(folder))
        label = f"{run['rounds']} rounds of the quickstart with {run['clients']} clients, start and stop included"
        yield limited(label, run["seconds"], 180.0, details=[run])
