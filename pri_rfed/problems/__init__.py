"""What is minimised."""

from pri_rfed.problems.base import Problem
from pri_rfed.problems.frechet import FrechetMean
from pri_rfed.problems.matrix_completion import MatrixCompletion
from pri_rfed.problems.pca import PrincipalEigenvector, PrincipalSubspace

PROBLEMS: dict[str, type[Problem]] = {
    problem.name: problem for problem in (PrincipalEigenvector, PrincipalSubspace, FrechetMean, MatrixCompletion)
}

__all__ = ["PROBLEMS", "FrechetMean", "MatrixCompletion", "PrincipalEigenvector", "PrincipalSubspace", "Problem"]
