"""A Grid in one process: the messages of the ServerApp go straight to a ClientApp, and its replies straight back."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

RUN = 1
"""The number of the only run."""


class LocalGrid(Grid):
    """Hands each message to `client` when it is sent. nodes: the configuration of each node, by its id."""

    def __init__(self, client: Callable[[Message, Context], Message], nodes: Mapping[int, Mapping[str, str]]):
        # Messages carry the identity of the process that makes them; the runtime would have set it.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 1
        self._run = Run.create_empty(RUN)
        self._client, self._replies = client, dict[str, Message]()
        self._contexts = {
            node: Context(run_id=RUN, node_id=node, node_config=dict(config), state=RecordDict(), run_config={})
            for node, config in nodes.items()
        }

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        """The only run. No app was submitted for it: its description is empty."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> list[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message_id = uuid.uuid4().hex
            message.metadata.__dict__["_message_id"] = message_id
            try:
                reply = self._client(message, self._contexts[message.metadata.dst_node_id])
            except Exception as error:  # as the runtime does
                reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, repr(error)), reply_to=message)
            self._replies[message_id] = reply
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(message_id) for message_id in list(message_ids) if message_id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))
