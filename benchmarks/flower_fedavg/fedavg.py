"""A Flower app as its documentation has it: the strategy FedAvg, and clients whose training does nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

server = ServerApp()
client = ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    config, ends = context.run_config, list[float]()

    def note(number: int, arrays: ArrayRecord) -> None:
        ends.append(time.perf_counter())

    nodes = int(config["clients"])
    strategy = FedAvg(fraction_evaluate=0.0, min_evaluate_nodes=0, min_train_nodes=nodes, min_available_nodes=nodes)
    model = ArrayRecord({"model": Array(np.zeros(int(config["size"])))})
    result = strategy.start(grid, model, num_rounds=int(config["rounds"]), evaluate_fn=note)
    assert len(result.train_metrics_clientapp) == config["rounds"], "every round has replies"
    times = Path(str(config["times"]))
    written = times.with_suffix(".new")
    written.write_text(json.dumps(ends))
    written.replace(times)
