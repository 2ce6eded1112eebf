"""The Flower ServerApp: a federation run by Flower's own SuperLink and SuperExec, `flwr run . -c 'federation="FILE"'`.

`pri-rfed server` needs none of that and is several times faster; this is for who runs Flower anyway. The run's folder
is on the server's machine; a run that is not finished there is gone on with.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from pri_rfed import keys
from pri_rfed.coordinator import RunStopped
from pri_rfed.experiment.federation import Federation, open_run
from pri_rfed.experiment.run import NamedRuntime, Progress, resume, start
from server.deployment import over_grid

log = logging.getLogger(__name__)
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation whose configuration `federation` of the run configuration names, into the folder `out`."""
    given, out = Path(str(context.run_config["federation"])), Path(str(context.run_config["out"]))
    federation, folder, begun = open_run(given, out)
    if folder.read("summary.json") is not None:
        log.info("%s: this run is finished", out)
        return
    nodes = await_nodes(grid, federation)
    runtime = NamedRuntime("flower app", lambda *run: over_grid(federation, grid, nodes, *run))
    (resume if begun else start)(federation.experiment, folder, _report, runtime)


def await_nodes(grid: Grid, federation: Federation) -> dict[str, int]:
    """The node of each key file, once all are connected. Raises RunStopped if they do not come in time."""
    public = {agent.key: keys.public_pem(Path(agent.key)) for agent in federation.agents}
    deadline = time.monotonic() + federation.exchange.wait
    while True:
        known = {node.public_key: node.node_id for node in grid.get_nodes()}
        nodes = {key: known[pem] for key, pem in public.items() if pem in known}
        if len(nodes) == len(public):
            return nodes
        if time.monotonic() > deadline:
            away = ", ".join(sorted(set(public) - set(nodes)))
            raise RunStopped(f"clients did not connect within {federation.exchange.wait:g} s: {away}")
        time.sleep(0.5)


def _report(progress: Progress) -> None:
    log.info("round %d/%d  ε spent %.4g", progress.round, progress.rounds, progress.epsilon)
