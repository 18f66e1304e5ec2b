"""Which code a kept table measures, and whether it has changed since."""

import ast
import hashlib
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
MEASURES = {
    "all_engines": "abc bootstrap engines likelihoods losses mcmc samplers",
    "blowfly": "likelihoods",
    "budgets": "likelihoods",
    "cold_start": "engines likelihoods",
    "comparison": "engines likelihoods samplers",
    "exponential_gamma": "abc embeddings likelihoods",
    "guard": "bootstrap engines likelihoods losses samplers",
    "k2abc": "abc embeddings",
    "kbr_5_2": "embeddings",
    "kbr_filter": "embeddings",
    "kbr_gaussian": "embeddings",
    "kernel_learning": "kernels",
    "known_posteriors": "engines likelihoods samplers",
    "lotka_volterra": "likelihoods",
    "misfit": "likelihoods",
    "mnle": "likelihoods",
    "rates": "embeddings likelihoods/published",
    "surface": "likelihoods/published",
    "trials": "likelihoods",
    "verdict": "diagnostics",
}
"""Folders of the package whose code decides the numbers of a benchmark."""


def digest(name, package=ROOT / "numpyro_kme"):
    """Eight hexadecimal digits of the code that a benchmark measures; docstrings and comments do not count."""
    found = hashlib.sha256()
    for folder in MEASURES[name].split():
        for path in sorted((package / folder).rglob("*.py")):
            found.update("\n".join([path.name, *statements(path.read_text())]).encode())
    return found.hexdigest()[:8]


def statements(text):
    """Lines of a module that run."""
    strings = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
    strings = (node for node in strings if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str))
    told = {number for node in strings for number in range(node.lineno, node.end_lineno + 1)}
    lines = (line for number, line in enumerate(text.splitlines(), 1) if number not in told)
    return [line.rstrip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def commit():
    """The commit of the main branch that this checkout began at, or its own where there is no other."""
    for found in (["merge-base", "HEAD", "origin/main"], ["rev-parse", "HEAD"]):
        done = subprocess.run(["git", *found], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout[:8]
    return "unknown"
