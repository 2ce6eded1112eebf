"""The Flower ClientApp: unpacks a plan, has the agents of this client answer it, packs their answer.

Which agents: the owners' policies in the file or folder that the node's configuration names under `policies`. Nothing
that the server sends, its run configuration included, has a say in that.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from pri_rfed.participant import Participant, answer
from pri_rfed.policy import load_policies
from pri_rfed.wire import DECLINED, RECORD, Plan, WireError, clean

log = logging.getLogger(__name__)
app = ClientApp()


@cache
def participants(policies: str) -> dict[str, Participant]:
    """The agents of a file or folder of policies, by name; read once in a process."""
    return {policy.agent: Participant(policy) for policy in load_policies(Path(policies))}


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer a plan. What is no plan, or one of another version of the project, is declined before anything else."""
    agents = participants(str(context.node_config["policies"]))
    record = message.content.get(RECORD)
    try:
        plan = Plan.unpack(record if isinstance(record, ConfigRecord) else {})
    except WireError as error:
        log.warning("declined what the server sent, nothing was trained: %s", error)
        return Message(Error(DECLINED, clean(error)), reply_to=message)
    packed = answer(agents, plan).pack()
    return Message(RecordDict({RECORD: ConfigRecord(dict(packed))}), reply_to=message)
