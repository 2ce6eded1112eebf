"""The exact privacy of one Gaussian release, in closed form: mu = sensitivity/sigma says all there is to say of it."""

from __future__ import annotations

import math

from scipy import special


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The least delta at epsilon >= 0 of a release with mu > 0 (Balle, Wang 2018, Theorem 8)."""
    a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return float(special.ndtr(a)) - math.exp(min(epsilon + float(special.log_ndtr(b)), 0.0))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The least epsilon at `delta` of a release; 0 for mu <= 0."""
    from scipy.optimize import brentq  # here, because importing it takes longer than most of what an accountant does

    if mu <= 0 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    reach = mu * mu / 2 - mu * float(special.ndtri(delta))
    return float(brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, reach, xtol=1e-12))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu of the release that is exactly (epsilon, delta)-private."""
    from scipy.optimize import brentq  # likewise

    return math.exp(brentq(lambda x: gaussian_delta(math.exp(x), epsilon) - delta, math.log(1e-9), math.log(1e9)))
