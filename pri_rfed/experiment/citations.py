"""What to cite for a run: the methods, accountants and data that it really used, as BibTeX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reference:
    """One publication. for_: what it is cited for."""

    key: str
    kind: str
    for_: str
    fields: Mapping[str, str]

    @property
    def title(self) -> str:
        """Without what only BibTeX needs."""
        return self.fields["title"].replace("{\\'e}", "é").replace("{", "").replace("}", "")

    def bibtex(self) -> str:
        body = ",\n".join(f"  {name} = {{{value}}}" for name, value in self.fields.items())
        return f"@{self.kind}{{{self.key},\n{body}\n}}"


def _reference(key: str, kind: str, for_: str, **fields: str) -> Reference:
    return Reference(key, kind, for_, fields)


REFERENCES: dict[str, Reference] = {
    reference.key: reference
    for reference in (
        _reference(
            "huang2024prirfed", "misc", "the federated algorithm (PriRFed)",
            author="Huang, Zhenwei and Huang, Wen and Jawanpuria, Pratik and Mishra, Bamdev",
            title="Federated Learning on {R}iemannian Manifolds with Differential Privacy",
            year="2024", eprint="2404.10029", archiveprefix="arXiv",
        ),
        _reference(
            "han2024dpriemannian", "article", "local training by DP-RSGD, and tangent Gaussian noise",
            author="Han, Andi and Mishra, Bamdev and Jawanpuria, Pratik and Gao, Junbin",
            title="Differentially private {R}iemannian optimization",
            journal="Machine Learning", volume="113", number="3", pages="1133--1161", year="2024",
            doi="10.1007/s10994-023-06508-5",
        ),
        _reference(
            "utpala2023improved", "article", "local training by DP-RSVRG, and fast sampling of tangent Gaussians",
            author="Utpala, Saiteja and Han, Andi and Jawanpuria, Pratik and Mishra, Bamdev",
            title="Improved Differentially Private {R}iemannian Optimization: Fast Sampling and Variance Reduction",
            journal="Transactions on Machine Learning Research", year="2023",
            url="https://openreview.net/forum?id=paguBNtgi0",
        ),
        _reference(
            "reimherr2021dp", "inproceedings", "output perturbation by the Riemannian Laplace mechanism",
            author="Reimherr, Matthew and Bharath, Karthik and Soto, Carlos J",
            title="Differential Privacy Over {R}iemannian Manifolds",
            booktitle="Advances in Neural Information Processing Systems", volume="34", year="2021",
        ),
        _reference(
            "soto2022shape", "inproceedings", "output perturbation by the K-norm gradient mechanism on manifolds",
            author="Soto, Carlos and Bharath, Karthik and Reimherr, Matthew and Slavkovi\\'{c}, Aleksandra",
            title="Shape and Structure Preserving Differential Privacy",
            booktitle="Advances in Neural Information Processing Systems", volume="35", pages="24693--24705",
            year="2022",
        ),
        _reference(
            "abadi2016deep", "inproceedings", "clipped and noised gradients in flat space (DP-SGD)",
            author="Abadi, Martin and Chu, Andy and Goodfellow, Ian and McMahan, H Brendan and Mironov, Ilya and "
            "Talwar, Kunal and Zhang, Li",
            title="Deep Learning with Differential Privacy",
            booktitle="ACM SIGSAC Conference on Computer and Communications Security", pages="308--318", year="2016",
        ),
        _reference(
            "mcmahan2018learning", "inproceedings", "federated averaging with privacy, in flat space",
            author="McMahan, H Brendan and Ramage, Daniel and Talwar, Kunal and Zhang, Li",
            title="Learning Differentially Private Recurrent Language Models",
            booktitle="International Conference on Learning Representations", year="2018",
        ),
        _reference(
            "dwork2014analyze", "inproceedings", "input perturbation of second moments",
            author="Dwork, Cynthia and Talwar, Kunal and Thakurta, Abhradeep and Zhang, Li",
            title="Analyze {G}auss: Optimal Bounds for Privacy-Preserving Principal Component Analysis",
            booktitle="ACM Symposium on Theory of Computing", pages="11--20", year="2014",
        ),
        _reference(
            "zhang2016rsvrg", "inproceedings", "local training by RSVRG",
            author="Zhang, Hongyi and Reddi, Sashank J and Sra, Suvrit",
            title="{R}iemannian {SVRG}: Fast Stochastic Optimization on {R}iemannian Manifolds",
            booktitle="Advances in Neural Information Processing Systems", volume="29", year="2016",
        ),
        _reference(
            "li2023federated", "article", "federated training without privacy (RFedSVRG), and the tangent mean",
            author="Li, Jiaxiang and Ma, Shiqian",
            title="Federated Learning on {R}iemannian Manifolds",
            journal="Applied Set-Valued Analysis and Optimization", volume="5", number="2", year="2023",
        ),
        _reference(
            "bonnabel2013sgd", "article", "local training by RSGD",
            author="Bonnabel, Silv{\\`e}re", title="Stochastic Gradient Descent on {R}iemannian Manifolds",
            journal="IEEE Transactions on Automatic Control", volume="58", number="9", pages="2217--2229", year="2013",
        ),
        _reference(
            "doroshenko2022connect", "article", "privacy loss distributions on a grid (accountant pld)",
            author="Doroshenko, Vadym and Ghazi, Badih and Kamath, Pritish and Kumar, Ravi and Manurangsi, Pasin",
            title="Connect the Dots: Tighter Discrete Approximations of Privacy Loss Distributions",
            journal="Proceedings on Privacy Enhancing Technologies", year="2022", eprint="2207.04380",
            archiveprefix="arXiv",
        ),
        _reference(
            "balle2018subsampling", "inproceedings", "amplification by drawing batches without replacement",
            author="Balle, Borja and Barthe, Gilles and Gaboardi, Marco",
            title="Privacy Amplification by Subsampling: Tight Analyses via Couplings and Divergences",
            booktitle="Advances in Neural Information Processing Systems", volume="31", year="2018",
        ),
        _reference(
            "wang2019subsampled", "inproceedings", "Renyi accounting by autodp (accountant rdp)",
            author="Wang, Yu-Xiang and Balle, Borja and Kasiviswanathan, Shiva Prasad",
            title="Subsampled {R}{\\'e}nyi Differential Privacy and Analytical Moments Accountant",
            booktitle="International Conference on Artificial Intelligence and Statistics", pages="1226--1235",
            publisher="PMLR", year="2019",
        ),
        _reference(
            "beutel2020flower", "misc", "the runtime: Flower",
            author="Beutel, Daniel J and Topal, Taner and Mathur, Akhil and Qiu, Xinchi and Fernandez-Marques, Javier "
            "and Gao, Yan and Sani, Lorenzo and Li, Kwing Hei and Parcollet, Titouan and de Gusm{\\~a}o, Pedro Porto "
            "Buarque and Lane, Nicholas D",
            title="{F}lower: A Friendly Federated Learning Research Framework", year="2020", eprint="2007.14390",
            archiveprefix="arXiv",
        ),
        _reference(
            "alpaydin1998digits", "misc", "the data: handwritten digits",
            author="Alpaydin, Ethem and Kaynak, Cenk", title="Optical Recognition of Handwritten Digits",
            howpublished="UCI Machine Learning Repository", year="1998", doi="10.24432/C50P49",
        ),
        _reference(
            "deng2012mnist", "article", "the data: MNIST",
            author="Deng, Li",
            title="The {MNIST} Database of Handwritten Digit Images for Machine Learning Research",
            journal="IEEE Signal Processing Magazine", volume="29", number="6", pages="141--142", year="2012",
        ),
        _reference(
            "chang2011libsvm", "article", "the data: the LIBSVM collection",
            author="Chang, Chih-Chung and Lin, Chih-Jen",
            title="{LIBSVM}: A Library for Support Vector Machines",
            journal="ACM Transactions on Intelligent Systems and Technology", volume="2", number="3",
            pages="27:1--27:27", year="2011",
        ),
        _reference(
            "yang2023medmnist", "article", "the data: PathMNIST",
            author="Yang, Jiancheng and Shi, Rui and Wei, Donglai and Liu, Zequan and Zhao, Lin and Ke, Bilian and "
            "Pfister, Hanspeter and Ni, Bingbing",
            title="{MedMNIST} v2 - A Large-Scale Lightweight Benchmark for {2D} and {3D} Biomedical Image "
            "Classification",
            journal="Scientific Data", volume="10", number="1", year="2023",
        ),
        _reference(
            "vanderwalt2014scikit", "article", "the data: an image that comes with scikit-image",
            author="van der Walt, St{\\'e}fan and Sch{\\\"o}nberger, Johannes L and Nunez-Iglesias, Juan and Boulogne, "
            "Fran{\\c{c}}ois and Warner, Joshua D and Yager, Neil and Gouillart, Emmanuelle and Yu, Tony",
            title="scikit-image: Image Processing in {P}ython", journal="PeerJ", volume="2", pages="e453", year="2014",
        ),
        _reference(
            "harper2015movielens", "article", "the data: MovieLens",
            author="Harper, F Maxwell and Konstan, Joseph A", title="The {MovieLens} Datasets: History and Context",
            journal="ACM Transactions on Interactive Intelligent Systems", volume="5", number="4",
            pages="19:1--19:19", year="2015",
        ),
        _reference(
            "miller1995wordnet", "article", "the data: WordNet",
            author="Miller, George A", title="{WordNet}: A Lexical Database for {E}nglish",
            journal="Communications of the ACM", volume="38", number="11", pages="39--41", year="1995",
        ),
        _reference(
            "nickel2017poincare", "inproceedings", "the data: hyperbolic embeddings of a graph",
            author="Nickel, Maximilian and Kiela, Douwe",
            title="{P}oincar{\\'e} Embeddings for Learning Hierarchical Representations",
            booktitle="Advances in Neural Information Processing Systems", volume="30", year="2017",
        ),
        _reference(
            "miolane2020geomstats", "article", "the data: EMG recordings that come with geomstats",
            author="Miolane, Nina and Guigui, Nicolas and Le Brigant, Alice and Mathe, Johan and Hou, Benjamin and "
            "Thanwerdas, Yann and Heyder, Stefan and Peltre, Olivier and Koep, Niklas and Zaatiti, Hadi and others",
            title="Geomstats: A {P}ython Package for {R}iemannian Geometry in Machine Learning",
            journal="Journal of Machine Learning Research", volume="21", number="223", pages="1--9", year="2020",
        ),
    )
}  # fmt: skip

BY_TRAINER = {
    "dp-rsgd": ("han2024dpriemannian", "utpala2023improved"),
    "dp-rsvrg": ("utpala2023improved", "han2024dpriemannian"),
    "dp-projected-sgd": ("han2024dpriemannian", "abadi2016deep"),
    "dp-fedavg": ("mcmahan2018learning", "abadi2016deep"),
    "input-perturbation": ("dwork2014analyze",),
    "riemannian-laplace": ("reimherr2021dp",),
    "kng": ("soto2022shape", "reimherr2021dp"),
    "rsgd": ("bonnabel2013sgd",),
    "rsvrg": ("zhang2016rsvrg",),
    "rgd": ("bonnabel2013sgd",),
    "rfedsvrg": ("li2023federated",),
}
BY_SOURCE = {
    "digits": ("alpaydin1998digits",),
    "mnist": ("deng2012mnist",),
    "pathmnist": ("yang2023medmnist",),
    "ihc": ("vanderwalt2014scikit",),
    "movielens": ("harper2015movielens",),
    "satimage": ("chang2011libsvm",),
    "ijcnn1": ("chang2011libsvm",),
    "emg": ("miolane2020geomstats",),
    "synthetic-pca": ("han2024dpriemannian",),
    "synthetic-spd": ("reimherr2021dp",),
    "synthetic-ball": ("reimherr2021dp",),
    "wordnet": ("miller1995wordnet", "nickel2017poincare"),
}
WITHOUT_REFERENCE = ("file", "synthetic-ratings")
"""Data that are the user's own, or made up here."""
PROCESSES = ("grid", "flower", "containers", "server")
"""Runtimes that are built on Flower."""


def references(config: Mapping[str, Any], runtime: str, accountants: set[str]) -> list[Reference]:
    """What a run with this resolved configuration used. accountants: those whose figures are shown.

    What is the user's own (a data file, a problem) has no entry.
    """
    trainer = config.get("trainer", {})
    keys = ["huang2024prirfed", *BY_TRAINER.get(trainer.get("name"), ())]
    if "pld" in accountants:
        keys.append("doroshenko2022connect")
    if trainer.get("batch", "full") != "full" and trainer.get("sampling", "without-replacement") != "poisson":
        keys.append("balle2018subsampling")
    if "rdp" in accountants:
        keys.append("wang2019subsampled")
    if runtime in PROCESSES:
        keys.append("beutel2020flower")
    keys += BY_SOURCE.get(config.get("data", {}).get("source"), ())
    return [REFERENCES[key] for key in dict.fromkeys(keys)]


def bibtex(entries: list[Reference]) -> str:
    """A BibTeX file of the entries, each under what it is cited for."""
    return "\n\n".join(f"% {entry.for_}\n{entry.bibtex()}" for entry in entries) + "\n"
