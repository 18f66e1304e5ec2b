"""Results as ArviZ objects (0.23 or 1.x), and what such objects hold."""

import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np

from numpyro_kme._core import checks

Group = Mapping[str, Any]


def to_inference_data(
    groups: Mapping[str, Group],
    *,
    coords: Mapping[str, Sequence] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    attrs: Mapping[str, Any] | None = None,
    leading: Mapping[str, Sequence[str]] | None = None,
):
    """Build the ArviZ object that belongs to the installed ArviZ.

    Args:
        groups: `{group: {variable: array}}`. Arrays have shape `(chain, draw, *event)`, except in `observed_data`,
            which has no sample dimensions. Groups outside ArviZ's own list are kept on both lines.
            Slashes in names, as `numpyro.handlers.scope` makes them, become dots (`valid`).
        coords: Values of named dimensions.
        dims: Names of the dimensions of one draw, by variable; `{variable}_dim_{i}` otherwise. The group
            `log_likelihood` takes those of the plates, the first ones.
        attrs: Attributes to attach to every group; values that netCDF cannot hold are written as text.
        leading: Names of the leading dimensions of groups that have others, `{group: names}`.
    Returns:
        An `arviz.InferenceData` under ArviZ 0.x, an `xarray.DataTree` under 1.x.
    """
    import xarray

    arviz = _arviz()
    groups = {group: {valid(name): value for name, value in held.items()} for group, held in groups.items()}
    dims, coords = named(dims, coords)
    attributes = {
        "created_at": datetime.now(UTC).isoformat(),
        "inference_library": "numpyro_kme",
        "inference_library_version": version("numpyro-kme"),
        **{name: _plain(value) for name, value in (attrs or {}).items()},
    }
    own, datasets = {"observed_data": (), **(leading or {})}, {}
    for name, group in groups.items():
        taken = {"chain", "draw"} & set(group)
        checks.require(not taken, f"ArviZ calls dimensions {sorted(taken)}, as sites are called here. Give others.")
        if group:
            names = _of_calls(groups, dims) if name == "log_likelihood" else dims
            datasets[name] = _dataset(group, tuple(own.get(name, ("chain", "draw"))), coords, names, attributes)
    if int(arviz.__version__.partition(".")[0]) < 1:
        return arviz.InferenceData(warn_on_custom_groups=False, **datasets)
    return xarray.DataTree.from_dict(datasets)


def summary(data: Any) -> Any:
    """`arviz.summary` of the posterior of an ArviZ object, a table of pandas, with all digits."""
    return _arviz().summary(data, round_to="none")


def compare(data: Mapping[str, Any]) -> Any:
    """`arviz.compare` of ArviZ objects with pointwise log likelihoods, a table of pandas."""
    return _arviz().compare(dict(data))


def _arviz() -> Any:
    """The installed ArviZ, of which 0.23 announces its refactoring at import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return arviz


def valid(name: str) -> str:
    """A name that netCDF can hold, for which a slash divides groups."""
    return name.replace("/", ".")


def named(
    dims: Mapping[str, Sequence[str]] | None, coords: Mapping[str, Sequence] | None
) -> tuple[dict[str, tuple[str, ...]], dict[str, list]]:
    """Names of dimensions by variable, and values of dimensions, under `valid` names."""
    found = {valid(name): tuple(map(valid, own)) for name, own in (dims or {}).items()}
    return found, {valid(name): list(values) for name, values in (coords or {}).items()}


def _of_calls(groups: Mapping[str, Group], dims: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Names of the plates' dimensions, of variables whose log likelihood has a number for each call along plates."""
    plates = {name: np.shape(value)[2:] for name, value in groups["log_likelihood"].items()}
    observed = groups.get("observed_data", {})
    return {
        name: dims[name][: len(shape)]
        for name, shape in plates.items()
        if name in dims and name in observed and np.shape(observed[name])[: len(shape)] == shape
    }


def read_groups(source: Any, names: Sequence[str]) -> dict[str, dict[str, np.ndarray]]:
    """Variables of some groups of an ArviZ object: `{group: {variable: (chain, draw, *event)}}`.

    Raises:
        TypeError: If it is another object, such as the path of a file.
        ValueError: If one of the groups is not there.
    """
    checks.require(
        hasattr(source, "groups"),
        f"`source` must be an ArviZ object, and not the path of a file; got {source!s:.200}. Open a file first: "
        "arviz.from_netcdf(path), or xarray.open_datatree(path).",
        TypeError,
    )
    found = list(source.groups() if callable(source.groups) else source.children)
    missing = [name for name in names if name not in found]
    checks.require(not missing, f"The ArviZ object has no group {missing}; it has {found}.")
    return {name: {str(key): np.asarray(one.values) for key, one in source[name].data_vars.items()} for name in names}


def axes(
    name: str, shape: Sequence[int], dims: Mapping[str, Sequence[str]], coords: Mapping[str, Sequence]
) -> list[tuple[str, Sequence]]:
    """Dimensions of a variable of this shape, each with the values along it: `<name>_dim_<i>` and 0, 1, ..., unless
    `dims` names the dimensions, and `coords` gives values of one.

    Raises:
        ValueError: If there are other than `len(shape)` names, or as many values as a dimension is long.
    """
    own = tuple(dims.get(name, ())) or tuple(f"{name}_dim_{i}" for i in range(len(shape)))
    checks.require(
        len(own) == len(shape),
        f"`{name}` has the event shape {tuple(shape)}, and `dims` has {list(own)} for it. Pass one name for each "
        "event dimension.",
    )
    found = [(dim, coords.get(dim, range(size))) for dim, size in zip(own, shape)]
    for (dim, values), size in zip(found, shape):
        checks.require(
            len(values) == size,
            f"`coords` has {len(values)} values for {dim!r}, along which `{name}` has {size} numbers. Pass one for "
            "each.",
        )
    return found


def _dataset(group: Group, sample_dims, coords, dims, attributes):
    import xarray

    variables: dict[str, Any] = {}
    used: dict[str, Sequence] = {}
    for name, value in group.items():
        array = np.asarray(value)
        lead = len(sample_dims)
        checks.require(
            array.ndim >= lead,
            f"`{name}` has shape {array.shape}; it needs the leading dimensions {sample_dims}.",
        )
        own = axes(name, array.shape[lead:], dims, coords)
        own = [*((dim, coords.get(dim, range(size))) for dim, size in zip(sample_dims, array.shape)), *own]
        variables[name] = ([dim for dim, _ in own], array)
        used |= {dim: list(values) for dim, values in own}
    return xarray.Dataset(variables, coords=used, attrs=attributes)


def _plain(value: Any) -> Any:
    """A number, string or 1-D array that netCDF can hold."""
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if isinstance(value, (int, float, str, np.integer, np.floating)):
        return value
    array = np.asarray(value)
    return array if array.ndim <= 1 and array.dtype.kind in "if" else str(value)
