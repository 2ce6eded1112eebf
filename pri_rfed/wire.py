"""What crosses the network between server and clients, and how it is packed.

A message is one flat record of names and plain values, which Flower carries as it is: a header in JSON, and the numbers
as raw bytes. The header is read and judged before a byte of the numbers is, and nothing that is received is ever
unpickled or executed.

    server -> client   Plan     what to train, from which point, which of the client's agents
    client -> server   Answer   for each of those agents its point, or the reason why there is none
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from typing import Any, NoReturn

import numpy as np

from pri_rfed.manifolds.base import Array

PROTOCOL = 1
"""Version of the messages: both sides must have the same."""
PROJECT = metadata.version("pri-rfed")
"""Version of the project: said in every message, so that a difference can be named in a log."""
RECORD = "pri-rfed"
"""Name of the one record that a message consists of."""

DECLINED = 1001
"""Code of the error by which a client answers what it does not read as a plan: nothing was trained. Versions of the
project share it, as they share the entries `protocol` and `project` of a header."""

LONGEST_HEADER = 1 << 20
LONGEST_REASON = 300
MOST_AXES = 32
_DTYPE = "<f8"

Packed = dict[str, str | bytes]


class WireError(ValueError):
    """A message that is not what it should be."""


@dataclass(frozen=True)
class Plan:
    """What the server asks of a client in a round. Everything in it is public.

    run: which run. round: t = 0, 1, ... attempt: counts how often this round was asked for before. problem, trainer:
    tables as in a configuration, by name and fields. point: the base point w_t. agents: who is to train, with the
    number of records that each is registered with.
    """

    run: str
    round: int
    attempt: int
    problem: Mapping[str, Any]
    trainer: Mapping[str, Any]
    point: Array
    agents: Mapping[str, int]

    def pack(self) -> Packed:
        """The record that is sent."""
        point = np.asarray(self.point)
        header = {
            "protocol": PROTOCOL,
            "project": PROJECT,
            "run": self.run,
            "round": self.round,
            "attempt": self.attempt,
            "problem": dict(self.problem),
            "trainer": dict(self.trainer),
            "shape": list(point.shape),
            "agents": dict(self.agents),
        }
        return {"header": json.dumps(header, allow_nan=False), "numbers": _numbers(point)}

    @cached_property
    def digest(self) -> str:
        """Which plan an answer is to: no two plans share it, be it for a round, an attempt or a point."""
        packed = self.pack()
        return hashlib.sha256(str(packed["header"]).encode() + b"\0" + bytes(packed["numbers"])).hexdigest()  # type: ignore[arg-type]

    @classmethod
    def unpack(cls, record: Mapping[str, Any]) -> Plan:
        """The inverse of `pack`. Raises WireError, with the reason, for anything else."""
        header = _header(record)
        plan = cls(
            _take(header, "run", str),
            _take(header, "round", int),
            _take(header, "attempt", int),
            _take(header, "problem", dict),
            _take(header, "trainer", dict),
            _array(record, _shape(header)),
            _take(header, "agents", dict),
        )
        if plan.round < 0 or plan.attempt < 0:
            raise WireError(f"round = {plan.round} and attempt = {plan.attempt} must be >= 0")
        for name, count in plan.agents.items():
            if not name or isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise WireError(f"agents: {name!r} with {count!r} records; a number of records is whole and >= 1")
        if not plan.agents:
            raise WireError("agents: none is named")
        return plan


@dataclass(frozen=True)
class Answer:
    """What a client answers: the privatised points of agents that trained, the reasons of those that did not. Nothing
    else in it depends on records.

    plan: digest of the plan that it answers.
    """

    plan: str
    points: Mapping[str, Array] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    def pack(self) -> Packed:
        """The record that is sent."""
        points = np.stack(list(self.points.values())) if self.points else np.zeros(0)
        header = {
            "protocol": PROTOCOL,
            "project": PROJECT,
            "plan": self.plan,
            "shape": list(points.shape),
            "points": list(self.points),
            "refused": dict(self.refused),
        }
        return {"header": json.dumps(header, allow_nan=False), "numbers": _numbers(points)}

    @classmethod
    def unpack(cls, record: Mapping[str, Any], plan: Plan) -> Answer:
        """The answer to `plan`. Raises WireError, with the reason, for anything else: an answer to another plan, of
        other agents, twice of the same agent, of another shape."""
        header = _header(record)
        if _take(header, "plan", str) != plan.digest:
            raise WireError("it answers another plan")
        names, refused = _take(header, "points", list), _take(header, "refused", dict)
        said = [*names, *refused]
        strangers = [name for name in said if not isinstance(name, str) or name not in plan.agents]
        if strangers:
            raise WireError(f"it speaks for {clean(strangers[0])}, who was not asked")
        if len(set(said)) < len(said):
            raise WireError("it answers twice for the same agent")
        shape = tuple(np.shape(plan.point))
        wanted = (len(names), *shape) if names else (0,)
        if _shape(header) != wanted:
            raise WireError(f"shape {_shape(header)} of numbers, not {wanted}")
        points = _array(record, wanted)
        return cls(
            plan.digest, dict(zip(names, points, strict=True)), {name: clean(why) for name, why in refused.items()}
        )


def exchange_sizes(
    run: str,
    problem: Mapping[str, Any],
    trainer: Mapping[str, Any],
    shape: tuple[int, ...],
    asked: Iterable[tuple[int, str, int]],
) -> tuple[int, int]:
    """(bytes down, bytes up) of the plans by which agents are asked to train, and of their answers, as packed.

    asked: (round, name, records) for every agent in every round, each with a client of its own, all of whom answer with
    a point of that shape. What Flower, gRPC and TLS add to a message is not counted.
    """
    known: dict[tuple[int, int, int], tuple[int, int]] = {}
    point = np.zeros(shape)
    down = up = 0
    for round, name, records in asked:
        # Nothing but the lengths of these three differs from one message to another.
        lengths = len(str(round)), len(json.dumps(name)), len(str(records))
        if lengths not in known:
            plan = Plan(run, round, 0, problem, trainer, point, {name: records})
            known[lengths] = _size(plan.pack()), _size(Answer(plan.digest, {name: point}).pack())
        down += known[lengths][0]
        up += known[lengths][1]
    return down, up


def _size(packed: Packed) -> int:
    """Bytes of a packed message."""
    return sum(len(part.encode() if isinstance(part, str) else part) for part in packed.values())


def clean(text: object) -> str:
    """A text from elsewhere as it may be written into a log: one line, printable, not long."""
    shown = "".join(c if c.isprintable() else " " for c in str(text)[: LONGEST_REASON + 1])
    return shown if len(shown) <= LONGEST_REASON else f"{shown[:LONGEST_REASON]}…"


def _numbers(array: Array) -> bytes:
    return np.ascontiguousarray(array, dtype=_DTYPE).tobytes()


def _header(record: Mapping[str, Any]) -> dict[str, Any]:
    text = record.get("header")
    if not isinstance(text, str) or len(text) > LONGEST_HEADER:
        raise WireError("it has no header")
    try:
        header = json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        raise WireError("its header is no JSON") from None
    if not isinstance(header, dict):
        raise WireError("its header is no table")
    if header.get("protocol") != PROTOCOL:
        theirs, project = clean(header.get("protocol")), clean(header.get("project"))
        raise WireError(
            f"it speaks version {theirs} of the protocol (project {project}), here is version {PROTOCOL} "
            f"(project {PROJECT}); install the same version of the project on both sides"
        )
    return header


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON, which Python's own reader does not mind")


def _take(header: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    value = header.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise WireError(f"header: {name} = {clean(value)} is no {kind.__name__}")
    return value


def _shape(header: Mapping[str, Any]) -> tuple[int, ...]:
    shape: Iterable[Any] = _take(header, "shape", list)
    if not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in shape):
        raise WireError(f"header: shape = {clean(shape)} is none")
    if len(sizes := tuple(shape)) > MOST_AXES:
        raise WireError(f"header: shape has {len(sizes)} axes, more than {MOST_AXES}")
    return sizes


def _array(record: Mapping[str, Any], shape: tuple[int, ...]) -> Array:
    """The numbers of a message, whose count the header must have announced."""
    content = record.get("numbers")
    size = math.prod(shape) * np.dtype(_DTYPE).itemsize
    if not isinstance(content, bytes) or len(content) != size:
        length = len(content) if isinstance(content, bytes) else 0
        raise WireError(f"{length} bytes of numbers where its header announces {size}")
    return np.frombuffer(content, dtype=_DTYPE).reshape(shape).astype(float)
