"""What an agent does in a round."""

from pri_rfed.training.base import Trainer
from pri_rfed.training.dp_rsgd import DPRSGD
from pri_rfed.training.dp_rsvrg import DPRSVRG
from pri_rfed.training.input_perturbation import InputPerturbation
from pri_rfed.training.output_perturbation import KNGMean, RiemannianLaplaceMean
from pri_rfed.training.projected import DPFedAvg, DPProjectedSGD
from pri_rfed.training.sgd import RGD, RSGD
from pri_rfed.training.steps import StepSize
from pri_rfed.training.svrg import RSVRG, RFedSVRG

TRAINERS: dict[str, type[Trainer]] = {
    trainer.name: trainer
    for trainer in (
        DPRSGD,
        DPRSVRG,
        DPProjectedSGD,
        DPFedAvg,
        InputPerturbation,
        RiemannianLaplaceMean,
        KNGMean,
        RSGD,
        RSVRG,
        RGD,
        RFedSVRG,
    )
}

__all__ = [
    "DPRSGD",
    "DPRSVRG",
    "RGD",
    "RSGD",
    "RSVRG",
    "TRAINERS",
    "DPFedAvg",
    "DPProjectedSGD",
    "InputPerturbation",
    "KNGMean",
    "RFedSVRG",
    "RiemannianLaplaceMean",
    "StepSize",
    "Trainer",
]
