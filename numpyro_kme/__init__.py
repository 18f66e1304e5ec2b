"""Likelihood-free Bayesian inference inside NumPyro, by kernel mean embeddings."""
