"""Which code a kept table measures, and whether it has changed since."""

import hashlib
import io
import subprocess
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
MEASURES = {
    "all_engines": "abc bootstrap engines likelihoods losses mcmc samplers",
    "blowfly": "likelihoods",
    "blowfly_rivals": "abc embeddings likelihoods",
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
    "misfit": "engines likelihoods samplers",
    "mnle": "likelihoods",
    "rates": "embeddings likelihoods/published",
    "surface": "likelihoods/published",
    "trials": "likelihoods",
    "verdict": "diagnostics",
}
"""Folders of the package whose code decides the numbers of a benchmark."""


def digest(name, package=ROOT / "numpyro_kme"):
    """Eight hexadecimal digits of the code that a benchmark measures; strings and comments do not count."""
    found = hashlib.sha256()
    for folder in MEASURES[name].split():
        for path in sorted((package / folder).rglob("*.py")):
            found.update(" ".join([path.name, *statements(path.read_text())]).encode())
    return found.hexdigest()[:8]


def statements(text):
    """Tokens of a module but comments, line ends and strings; Python 3.12 has more than one token in an f-string."""
    depth, kept = 0, []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = tokenize.tok_name[token.type]
        depth += (kind == "FSTRING_START") - (kind == "FSTRING_END")
        if depth == 0 and kind not in ("COMMENT", "FSTRING_END", "NEWLINE", "NL", "STRING"):
            kept.append(token.string)
    return kept


def commit():
    """The commit of the main branch that this checkout began at, or its own where there is no other."""
    for found in (["merge-base", "HEAD", "origin/main"], ["rev-parse", "HEAD"]):
        done = subprocess.run(["git", *found], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout[:8]
    return "unknown"
