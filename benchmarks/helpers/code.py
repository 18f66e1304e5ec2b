"""Which code a kept table measures, and whether it has changed since."""

import ast
import hashlib
import subprocess
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
    """Eight hexadecimal digits of the code that a benchmark measures (`numbers_alone`)."""
    found = hashlib.sha256()
    for folder in MEASURES[name].split():
        for path in sorted((package / folder).rglob("*.py")):
            found.update(f"{path.name} {numbers_alone(path.read_text())}".encode())
    return found.hexdigest()[:8]


def numbers_alone(text):
    """The code of a module without what no number depends on: comments, strings, imports, and checks of arguments."""
    return ast.unparse(_Bare().visit(ast.parse(text)))


class _Bare(ast.NodeTransformer):
    def visit(self, node):
        node = super().visit(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.decorator_list = [one for one in node.decorator_list if ast.unparse(one) != "door"]
        bare = isinstance(getattr(node, "body", None), list) and not node.body
        if bare and isinstance(node, ast.FunctionDef | ast.For):
            return None
        if bare:
            node.body = [ast.Pass()]
        return node

    def visit_Expr(self, node):
        called = ast.unparse(node.value)
        refuses = called.startswith(("checks.", "check_fields(")) and not called.startswith("checks.warn(")
        told = refuses or isinstance(node.value, ast.Constant)
        return None if told else self.generic_visit(node)

    def visit_Constant(self, node):
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node):
        return ast.Constant("")

    def visit_Import(self, node):
        return None

    visit_ImportFrom = visit_Import


def commit():
    """The commit of the main branch that this checkout began at, or its own where there is no other."""
    for found in (["merge-base", "HEAD", "origin/main"], ["rev-parse", "HEAD"]):
        done = subprocess.run(["git", *found], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout[:8]
    return "unknown"
