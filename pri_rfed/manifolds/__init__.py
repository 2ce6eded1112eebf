"""Riemannian manifolds: one file each, all with the interface of `base.Manifold`."""

from pri_rfed.manifolds.base import Array, LogError, Manifold
from pri_rfed.manifolds.euclidean import Euclidean
from pri_rfed.manifolds.grassmann import Grassmann
from pri_rfed.manifolds.hyperboloid import Hyperboloid
from pri_rfed.manifolds.poincare_ball import PoincareBall
from pri_rfed.manifolds.product import Product
from pri_rfed.manifolds.spd import SPDAffineInvariant, SPDBuresWasserstein, SPDLogEuclidean
from pri_rfed.manifolds.sphere import Sphere
from pri_rfed.manifolds.stiefel import Stiefel

MANIFOLDS: dict[str, type[Manifold]] = {
    manifold.name: manifold
    for manifold in (
        Euclidean,
        Sphere,
        Hyperboloid,
        PoincareBall,
        SPDAffineInvariant,
        SPDLogEuclidean,
        SPDBuresWasserstein,
        Stiefel,
        Grassmann,
        Product,
    )
}

__all__ = [
    "MANIFOLDS",
    "Array",
    "Euclidean",
    "Grassmann",
    "Hyperboloid",
    "LogError",
    "Manifold",
    "PoincareBall",
    "Product",
    "SPDAffineInvariant",
    "SPDBuresWasserstein",
    "SPDLogEuclidean",
    "Sphere",
    "Stiefel",
]
