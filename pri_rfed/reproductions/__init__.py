"""The experiments of the publications: one class each; `EXPERIMENTS` has them by name.

A new one is a class in one of the files here, a line below, and a file configs/reproduce/NAME.toml.
"""

from pri_rfed.reproductions.base import Reproduction
from pri_rfed.reproductions.completion import OptimizationMatrixCompletion
from pri_rfed.reproductions.federated import FederatedRFedSVRG
from pri_rfed.reproductions.hyperbolic import OptimizationWordNet, PriRFedWordNet, SamplingPoincare
from pri_rfed.reproductions.over_manifolds import OverManifoldsSPD, OverManifoldsSphere
from pri_rfed.reproductions.pca import OptimizationPCA, PriRFedMNISTPCA, PriRFedSyntheticPCA, SamplingSphere
from pri_rfed.reproductions.sampling import SamplingAlpha, SamplingOverhead, SamplingTime
from pri_rfed.reproductions.spd import (
    OptimizationBuresWasserstein,
    OptimizationSPDMean,
    PriRFedSPDImages,
    PriRFedSPDSynthetic,
    SamplingSPD,
)
from pri_rfed.reproductions.theorem import PriRFedTable

EXPERIMENTS: dict[str, type[Reproduction]] = {
    experiment.name: experiment
    for experiment in (
        PriRFedTable,
        PriRFedSyntheticPCA,
        PriRFedMNISTPCA,
        PriRFedSPDSynthetic,
        PriRFedSPDImages,
        PriRFedWordNet,
        OptimizationSPDMean,
        OptimizationBuresWasserstein,
        OptimizationPCA,
        OptimizationWordNet,
        OptimizationMatrixCompletion,
        SamplingTime,
        SamplingOverhead,
        SamplingAlpha,
        SamplingSPD,
        SamplingSphere,
        SamplingPoincare,
        OverManifoldsSPD,
        OverManifoldsSphere,
        FederatedRFedSVRG,
    )
}
