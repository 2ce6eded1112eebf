"""What is minimised."""

from pri_rfed.problems.base import Problem
from pri_rfed.problems.frechet import FrechetMean
from pri_rfed.problems.matrix_completion import MatrixCompletion
from pri_rfed.problems.pca import PrincipalEigenvector, PrincipalSubspace
from pri_rfed.problems.structured_prediction import HyperbolicStructuredPrediction

PROBLEMS: dict[str, type[Problem]] = {
    problem.name: problem
    for problem in (
        PrincipalEigenvector,
        PrincipalSubspace,
        FrechetMean,
        MatrixCompletion,
        HyperbolicStructuredPrediction,
    )
}

__all__ = [
    "PROBLEMS",
    "FrechetMean",
    "HyperbolicStructuredPrediction",
    "MatrixCompletion",
    "PrincipalEigenvector",
    "PrincipalSubspace",
    "Problem",
]
