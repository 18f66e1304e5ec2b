"""Numbers at the top of modules: where they stand, and how to change one everywhere."""

import ast
import functools
import importlib
import inspect
import pkgutil
import sys
import types


def numbers(*names):
    """Where each number of modules and folders of the package stands: `{"module.NAME" or "module.NAME[key]":
    [(namespace, key), ...]}`, the module's own first, and then those of modules that import it."""
    found = {}
    for module in (each for name in names for each in _within(name)):
        short = module.__name__.rpartition(".")[2]
        for name in filter(str.isupper, _assigned(module)):
            value = getattr(module, name)
            if isinstance(value, dict):
                found |= {f"{short}.{name}[{key}]": [(value, key)] for key in value if _is_number(value[key])}
            elif _is_number(value) or (isinstance(value, tuple) and all(map(_is_number, value))):
                found[f"{short}.{name}"] = [(vars(other), name) for other in (module, *_importing(module, name))]
    return found


def _within(name):
    module = importlib.import_module(f"numpyro_kme.{name}")
    if not hasattr(module, "__path__"):
        return [module]
    return [importlib.import_module(f"{module.__name__}.{own.name}") for own in pkgutil.iter_modules(module.__path__)]


def _is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def _assigned(module):
    """Names that a module assigns to at its top."""
    tree = ast.parse(inspect.getsource(module))
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def _importing(module, name):
    """Modules of the package that import a name from one."""
    others = [other for key, other in sys.modules.items() if key.startswith("numpyro_kme.")]
    return [other for other in others if (module.__name__, name) in _imported(other)]


@functools.cache
def _imported(module: types.ModuleType):
    """What a module imports at its top, as pairs of a module and a name."""
    nodes = [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ImportFrom)]
    return {(node.module, alias.name) for node in nodes for alias in node.names}


def changed(places, factor):
    """Multiply a number, or all of several, in all its places, whole ones rounded and at least 1; returns what undoes
    it."""
    before = places[0][0][places[0][1]]
    several = isinstance(before, tuple)
    value = tuple(_times(one, factor) for one in before) if several else _times(before, factor)
    value = type(before)(*value) if several and type(before) is not tuple else value
    for namespace, key in places:
        namespace[key] = value
    return lambda: [namespace.__setitem__(key, before) for namespace, key in places]


def _times(number, factor):
    return max(1, round(number * factor)) if isinstance(number, int) else number * factor
