"""A federation in Flower's own simulation (Ray), run by the benchmark in an environment that has it.

Agents with records on SPD matrices of m x m take K steps of DP-RSGD from the server's point, and the server takes their
tangent mean: the maths of PriRFed's round, written in NumPy in a Flower app, as a user of Flower would.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

ARGUMENTS = json.loads(sys.argv[1])
SIZE, STEPS, RECORDS = ARGUMENTS["m"], ARGUMENTS["steps"], ARGUMENTS["records"]
CLIP, SIGMA, ETA = 1.0, 0.1, 0.05


def powered(w, function):
    values, vectors = np.linalg.eigh(w)
    return (vectors * function(values)[..., None, :]) @ np.swapaxes(vectors, -1, -2)


def logs(w, x):
    root, inverse = powered(w, np.sqrt), powered(w, lambda v: 1 / np.sqrt(v))
    return root @ powered(inverse @ x @ inverse, np.log) @ root


def exp(w, v):
    root, inverse = powered(w, np.sqrt), powered(w, lambda v: 1 / np.sqrt(v))
    return root @ powered(inverse @ v @ inverse, np.exp) @ root


client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    a = rng.standard_normal((RECORDS, SIZE, 2 * SIZE))
    records = a @ np.swapaxes(a, -1, -2) / (2 * SIZE)
    w = message.content["arrays"]["point"].numpy()
    for _ in range(STEPS):
        gradients = -2 * logs(w, records)
        root, inverse = powered(w, np.sqrt), powered(w, lambda v: 1 / np.sqrt(v))
        norms = np.linalg.norm(inverse @ gradients @ inverse, axis=(-2, -1))
        v = np.mean(gradients * np.minimum(1, CLIP / norms)[:, None, None], axis=0)
        b = rng.standard_normal((SIZE, SIZE))
        w = exp(w, -ETA * (v + root @ (SIGMA / 2 * (b + b.T)) @ root))
    arrays = ArrayRecord({"point": Array(w)})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": RECORDS})}), reply_to=message)


class TangentMean(FedAvg):
    def configure_train(self, server_round, arrays, config: ConfigRecord, grid: Grid):
        self.point = arrays["point"].numpy()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        points = np.stack([reply.content["arrays"]["point"].numpy() for reply in replies])
        w = exp(self.point, logs(self.point, points).mean(axis=0))
        return ArrayRecord({"point": Array(w)}), MetricRecord()


@server.main()
def main(grid: Grid, context: Context) -> None:
    ends: list[float] = []
    agents = ARGUMENTS["agents"]
    strategy = TangentMean(
        fraction_evaluate=0.0, min_evaluate_nodes=0, min_train_nodes=agents, min_available_nodes=agents
    )
    strategy.start(
        grid,
        ArrayRecord({"point": Array(np.eye(SIZE))}),
        num_rounds=ARGUMENTS["rounds"],
        evaluate_fn=lambda number, arrays: ends.append(time.perf_counter()),
    )
    taken = np.diff(ends)[1:]  # the first round starts Ray's workers
    with open(ARGUMENTS["out"], "w", encoding="utf-8") as file:
        json.dump({"median": float(np.median(taken)), "least": float(taken.min()), "rounds": len(taken)}, file)


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, ARGUMENTS["agents"], backend_config=resources)
    with open(ARGUMENTS["out"], encoding="utf-8") as file:
        print(file.read())
