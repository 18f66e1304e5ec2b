"""Sets of simulations."""

import dataclasses

import jax

FIELDS = ("arguments", "x", "latents", "deterministics", "index")


def first(simulations, count):
    """The first `count` simulations of a run."""
    kept = {name: jax.tree.map(lambda a: a[:count], getattr(simulations, name)) for name in FIELDS}
    return dataclasses.replace(simulations, **kept)
