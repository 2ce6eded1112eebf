"""What privacy adds to 3·10⁵ steps.

Table 2 of the publication on fast sampling, measured as `pri-rfed reproduce sampling-overhead` does: DP-RSGD less the
same steps without clipping and noise, and its draws alone at least. (Published, on another machine: 41 s on SPD
matrices, 24 s on the sphere.)
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.table import Row, limited
from pri_rfed.data.download import DataFolders
from pri_rfed.reproductions.sampling import SamplingOverhead

PLACE = 25
AGENTS = 60
STEPS, SECONDS = 300_000, 5.0


def rows(quick: bool) -> Iterator[Row]:
    steps = 3000 if quick else 60_000
    experiment = SamplingOverhead(steps=steps, agents=AGENTS, measured=steps // 10, seeds=1 if quick else 3)
    for cell in experiment.cells():
        if cell["method"] != "prirfed":
            continue
        (row,) = experiment.measure(cell, DataFolders())
        who = "one agent alone" if cell["agents"] == 1 else f"{AGENTS} agents at once"
        what = f"SPD {cell['m']} x {cell['m']}" if cell["problem"] == "SPD" else f"sphere {cell['m']}"
        note = (
            f"Scaled up from {experiment.measured} steps (one agent alone) or {steps} ({AGENTS} agents)."
        )
        seconds = row["overhead"] * STEPS / steps
        yield limited(f"privatisation of 3·10⁵ steps: {what}, {who}", seconds, SECONDS, note=note)
