"""Private federated learning on Riemannian manifolds."""
