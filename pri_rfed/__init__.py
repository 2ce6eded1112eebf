"""Private federated learning on Riemannian manifolds.

The names below are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pri_rfed.aggregation import AgentLevelMean, FrechetMeanAggregation, TangentMean
    from pri_rfed.coordinator import State
    from pri_rfed.data.agents import AgentArrays
    from pri_rfed.manifolds import (
        Euclidean,
        Grassmann,
        Hyperboloid,
        PoincareBall,
        Product,
        SPDAffineInvariant,
        SPDBuresWasserstein,
        SPDLogEuclidean,
        Sphere,
        Stiefel,
    )
    from pri_rfed.problems import FrechetMean, PrincipalEigenvector, PrincipalSubspace, Problem
    from pri_rfed.simulation import Budget, Result, simulate
    from pri_rfed.training import (
        DPRSGD,
        DPRSVRG,
        RGD,
        RSGD,
        RSVRG,
        KNGMean,
        RFedSVRG,
        RiemannianLaplaceMean,
        StepSize,
    )

_HOMES = {
    "pri_rfed.aggregation": ("AgentLevelMean", "FrechetMeanAggregation", "TangentMean"),
    "pri_rfed.coordinator": ("State",),
    "pri_rfed.data.agents": ("AgentArrays",),
    "pri_rfed.manifolds": (
        "Euclidean",
        "Grassmann",
        "Hyperboloid",
        "PoincareBall",
        "Product",
        "SPDAffineInvariant",
        "SPDBuresWasserstein",
        "SPDLogEuclidean",
        "Sphere",
        "Stiefel",
    ),
    "pri_rfed.problems": ("FrechetMean", "PrincipalEigenvector", "PrincipalSubspace", "Problem"),
    "pri_rfed.simulation": ("Budget", "Result", "simulate"),
    "pri_rfed.training": (
        "DPRSGD",
        "DPRSVRG",
        "KNGMean",
        "RFedSVRG",
        "RGD",
        "RSGD",
        "RSVRG",
        "RiemannianLaplaceMean",
        "StepSize",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "DPRSGD",
    "DPRSVRG",
    "RGD",
    "RSGD",
    "RSVRG",
    "AgentArrays",
    "AgentLevelMean",
    "Budget",
    "Euclidean",
    "FrechetMean",
    "FrechetMeanAggregation",
    "Grassmann",
    "Hyperboloid",
    "KNGMean",
    "PoincareBall",
    "PrincipalEigenvector",
    "PrincipalSubspace",
    "Problem",
    "Product",
    "RFedSVRG",
    "Result",
    "RiemannianLaplaceMean",
    "SPDAffineInvariant",
    "SPDBuresWasserstein",
    "SPDLogEuclidean",
    "Sphere",
    "State",
    "StepSize",
    "Stiefel",
    "TangentMean",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
