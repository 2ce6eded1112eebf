"""One long-lived client process: it pulls plans from the SuperLink, has its agents answer them, pushes the answers.

It takes the place of Flower's SuperNode, which starts a process for every message, at 6 to 10 seconds a round, and runs
the code that the server ships. This one runs the code that is installed, and keeps it warm. It is written against
flwr 1.41.0, whose Fleet connection it uses.
"""

from __future__ import annotations

import logging
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE, ErrorCode
from flwr.supercore.grpc_health import run_health_server_grpc_no_tls
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

from clients.app import app, participants
from pri_rfed.keys import load_client_key

log = logging.getLogger(__name__)

QUICKEST, SLOWEST = 0.01, 1.0
"""How long to wait between two questions for a plan, in seconds: a tenth of the time since the last plan, within
these bounds. So waiting costs little of a round, however long it takes, and an idle client asks once a second."""


def serve(
    server: str,
    authority: Path,
    key: Path,
    policies: Path,
    health: str | None = None,
    until: Callable[[], bool] = lambda: False,
) -> int:
    """Answer plans until the process is stopped, or the server does not know this client any more.

    server: HOST:PORT of the Fleet API. authority: the federation's certificate authority. key: this client's private
    key. health: HOST:PORT of a gRPC health service, without TLS, for supervisors on this machine.

    until: asked while there is nothing to do; when it is true, the client leaves.

    Returns the exit status: 0 if `until` said so, else not 0, because a client does not end by itself.
    """
    private = load_client_key(key)
    agents = participants(str(policies))  # what is wrong with a policy or its data shows before anybody is contacted
    log.info("%d agents: %s", len(agents), ", ".join(agents))
    if health is not None:
        run_health_server_grpc_no_tls(health)
    with _connected(server, authority, private) as connection:
        node, receive, send, _, _, pull, push, confirm = connection
        log.info("connected to %s as node %d", server, node)
        last = time.monotonic()
        while True:
            try:
                received = receive()
            except RunNotRunningException:
                received = None
            if received is None:
                if until():
                    return 0
                time.sleep(min(max(QUICKEST, (time.monotonic() - last) / 10), SLOWEST))
                continue
            last = time.monotonic()
            head, tree = received
            run = head.metadata.run_id
            try:
                message = pull_and_inflate_object_from_tree(
                    tree,
                    lambda object_id, run=run: pull(run, object_id),  # type: ignore[misc]
                    lambda object_id, run=run: confirm(run, object_id),  # type: ignore[misc]
                    return_type=Message,
                    initial_backoff=0.02,
                )
                message.metadata.__dict__["_message_id"] = tree.object_id
                reply = _answer(message, node, policies)
                with no_object_id_recompute():
                    reply.metadata.__dict__["_message_id"] = reply.object_id
                    objects = get_all_nested_objects(reply)
                    head = remove_content_from_message(reply)
                    wanted, session = send(head, get_object_tree(reply), time.monotonic() - last)
                    push_objects(
                        objects,
                        lambda object_id, content, run=run, session=session: push(run, session, object_id, content),  # type: ignore[misc]
                        object_ids_to_push=wanted,
                    )
            except RunNotRunningException:
                log.warning("run %d has ended meanwhile; its plan, or the answer to it, is dropped", run)
            except Exception:
                log.exception("a message of run %d could not be dealt with", run)
            last = time.monotonic()
    log.error("the connection to %s is lost for good; %s", server, _clock_fault(server, authority) or _OTHER_FAULTS)
    return 1


@contextmanager
def _connected(server: str, authority: Path, private: ec.EllipticCurvePrivateKey) -> Iterator[tuple[Any, ...]]:
    """Flower's connection to the Fleet API. Logs what may be the reason if the server refuses this client's calls."""
    with ExitStack() as stack:
        try:
            pair = private, private.public_key()
            yield stack.enter_context(http_request_response(server, False, authority.read_bytes(), pair))
        except SystemExit:  # so Flower ends a process that cannot connect
            log.error("%s turned this client away; %s", server, _clock_fault(server, authority) or _OTHER_FAULTS)
            raise
        except KeyboardInterrupt:  # and so one whose sign of life was refused
            fault = _clock_fault(server, authority) or "it does not know this connection any more"
            log.warning("interrupted, by hand or because %s refuses a call; if so, %s", server, fault)
            raise


_OTHER_FAULTS = "is its key registered there, and does no other client with this key run?"


def _clock_fault(server: str, authority: Path) -> str | None:
    """What is wrong with this machine's clock, held against the server's, if that is why its calls are refused: the
    server gives no reasons."""
    try:
        context = ssl.create_default_context(cafile=str(authority))
        answer = httpx.post(f"https://{server}/", verify=context, trust_env=False, timeout=3.0)
        ahead = time.time() - parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (httpx.HTTPError, OSError, KeyError, ValueError):
        return None
    if -TIMESTAMP_TOLERANCE < ahead < SYSTEM_TIME_TOLERANCE - 1:  # the answer tells the time to the second
        return None
    return (
        f"calls are signed with the time, and this machine's clock is {abs(ahead):.0f} s "
        f"{'ahead of' if ahead > 0 else 'behind'} the server's: more than {SYSTEM_TIME_TOLERANCE} s ahead, or "
        f"{TIMESTAMP_TOLERANCE} s behind, is refused. Check the clock (NTP)"
    )


def _answer(message: Message, node: int, policies: Path) -> Message:
    """The reply of the app to one message, an error without details if it fails."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = message.metadata.run_id, node, 0
    context = Context(
        run_id=message.metadata.run_id,
        node_id=node,
        node_config={"policies": str(policies)},
        state=RecordDict(),
        run_config={},
    )
    try:
        return app(message, context)
    except Exception:
        log.exception("the answer to a message failed")
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "the client failed; see its log"), reply_to=message)


def configure_logging() -> None:
    """Log to stderr, a line each, with times."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True
    )
    for noisy in ("httpx", "httpcore", "flwr"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("flwr").handlers.clear()  # it prints everything a second time
