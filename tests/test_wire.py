"""What crosses the network survives it, and what is anything else is refused with the reason."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pri_rfed.wire import Answer, Plan, WireError, clean

PLAN = Plan(
    "run-1", 3, 0, {"name": "frechet-mean"}, {"name": "dp-rsgd", "noise": 0.1}, np.linspace(0, 1, 4).reshape(2, 2),
    {"a": 10, "b": 20, "c": 5},
)  # fmt: skip
POINTS = {"a": np.full((2, 2), 1 / 3), "b": np.array([[0.1, np.nan], [-0.0, 1e-300]])}
ANSWER = Answer(PLAN.digest, POINTS, {"c": "it would pass the owner's budget"})


def altered(packed: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A packed message with entries of its header changed; `numbers` replaces the payload."""
    out = dict(packed)
    if "numbers" in changes:
        out["numbers"] = changes.pop("numbers")
    out["header"] = json.dumps(json.loads(out["header"]) | changes)
    return out


def test_a_plan_comes_through_bit_by_bit() -> None:
    got = Plan.unpack(PLAN.pack())
    assert (got.run, got.round, got.attempt) == ("run-1", 3, 0)
    assert (got.problem, got.trainer, got.agents) == (PLAN.problem, PLAN.trainer, PLAN.agents)
    assert got.point.dtype == float and got.point.tobytes() == PLAN.point.tobytes()
    assert got.digest == PLAN.digest


def test_an_answer_comes_through_bit_by_bit() -> None:
    got = Answer.unpack(ANSWER.pack(), PLAN)
    assert list(got.points) == ["a", "b"] and got.refused == ANSWER.refused
    for name, point in POINTS.items():
        assert got.points[name].tobytes() == point.tobytes()


def test_an_answer_without_points() -> None:
    refused = {name: "no" for name in PLAN.agents}
    assert Answer.unpack(Answer(PLAN.digest, {}, refused).pack(), PLAN).refused == refused


@pytest.mark.parametrize(
    "change",
    [
        {"run": "run-2"},
        {"round": 4},
        {"attempt": 1},
        {"trainer": {"name": "dp-rsgd", "noise": 0.2}},
        {"agents": {"a": 10}},
        {"point": PLAN.point + 1e-16 * (PLAN.point == 0)},
    ],
)
def test_no_two_plans_share_a_digest(change: dict[str, Any]) -> None:
    other = replace(PLAN, **change)
    assert other.digest != PLAN.digest
    with pytest.raises(WireError, match="another plan"):
        Answer.unpack(ANSWER.pack(), other)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"plan": 7}, "plan = 7 is no str"),
        ({"protocol": 2, "project": "9.9"}, "version 2 of the protocol .project 9.9."),
        ({"protocol": None}, "version None"),
        ({"points": ["a", "mallory"]}, "mallory, who was not asked"),
        ({"points": ["a", ["b"]]}, "who was not asked"),
        ({"points": ["a", "a"]}, "twice"),
        ({"points": ["a", "c"]}, "twice"),
        ({"points": ["a"]}, r"shape \(2, 2, 2\) of numbers, not \(1, 2, 2\)"),
        ({"points": "ab"}, "points = ab is no list"),
        ({"shape": [2, 4]}, "shape"),
        ({"shape": [2, 2, 2.0]}, "shape"),
        ({"shape": [2, 2, -2]}, "shape"),
        ({"shape": [2, 2, True]}, "shape"),
        ({"shape": [10**9, 10**9, 10**9]}, "shape"),
        ({"refused": ["c"]}, "refused"),
        ({"numbers": b""}, "0 bytes of numbers where its header announces 64"),
        ({"numbers": b"\0" * 72}, "72 bytes"),
        ({"numbers": "text"}, "0 bytes"),
    ],
)
def test_what_is_no_answer_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        Answer.unpack(altered(ANSWER.pack(), **changes), PLAN)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"round": -1}, "round = -1"),
        ({"round": True}, "round = True"),
        ({"agents": {}}, "none is named"),
        ({"agents": {"a": 0}}, "'a' with 0 records"),
        ({"agents": {"a": 1.5}}, "1.5 records"),
        ({"trainer": "dp-rsgd"}, "trainer"),
        ({"shape": [3]}, "announces 24"),
        ({"shape": [2, 2, *[1] * 99]}, "101 axes"),
        ({"trainer": {"noise": float("nan")}}, "no JSON"),
        ({"problem": {"radius": float("inf")}}, "no JSON"),
    ],
)
def test_what_is_no_plan_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        Plan.unpack(altered(PLAN.pack(), **changes))


@pytest.mark.parametrize(
    "record",
    [{}, {"header": b"{}"}, {"header": "{"}, {"header": "[]"}, {"header": "[" * 10**5}, {"header": "x" * (1 << 21)}],
    ids=["nothing", "bytes", "no-json", "no-table", "deep", "long"],
)
def test_what_has_no_header_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="header"):
        Plan.unpack(record)


def test_a_reason_is_one_printable_line() -> None:
    assert clean("a\nb\x1b[31m\x00c") == "a b [31m c"
    assert len(clean("x" * 10**6)) < 400
    got = Answer.unpack(Answer(PLAN.digest, {}, {"a": "x\n" * 1000}).pack(), PLAN)
    assert "\n" not in got.refused["a"] and len(got.refused["a"]) < 400
