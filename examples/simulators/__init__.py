"""Simulators of published experiments: pure JAX, `fn(rng_key, *params)`, one event a call."""
