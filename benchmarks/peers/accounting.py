"""How long dp-accounting and autodp take to account for repeated sampled Gaussians; one epsilon, nothing cached."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
import warnings

warnings.simplefilter("ignore")


def dp_accounting(rate, mu, times, delta):
    """Poisson samples, by privacy loss distributions, for one added or removed record."""
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    began = time.perf_counter()
    event = dp.GaussianDpEvent(1 / mu)
    if rate < 1:
        event = dp.PoissonSampledDpEvent(rate, event)
    accountant = PLDAccountant()
    accountant.compose(dp.SelfComposedDpEvent(event, times))
    epsilon = accountant.get_epsilon(delta)
    return time.perf_counter() - began, epsilon


def autodp(rate, mu, times, delta):
    """Samples without replacement, by Renyi divergences, for one replaced record."""
    import numpy as np
    from autodp.mechanism_zoo import GaussianMechanism
    from autodp.transformer_zoo import AmplificationBySampling, Composition

    np.seterr(all="ignore")
    began = time.perf_counter()
    mechanism = GaussianMechanism(sigma=1 / mu)
    if rate < 1:
        mechanism.neighboring = "replace_one"
        mechanism = AmplificationBySampling(PoissonSampling=False)(mechanism, rate, improved_bound_flag=False)
    epsilon = Composition()([mechanism], [times]).get_approxDP(delta)
    return time.perf_counter() - began, float(epsilon)


def main(arguments):
    measured = []
    for case in arguments["cases"]:
        account = dp_accounting if case.pop("library") == "dp-accounting" else autodp
        with contextlib.redirect_stdout(io.StringIO()):
            taken = [account(**case) for _ in range(arguments["repeats"])]
        measured.append({"seconds": min(seconds for seconds, _ in taken), "epsilon": taken[0][1]})
    return measured


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
