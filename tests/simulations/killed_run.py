"""A run that a test kills: `python killed_run.py loky|dask path number`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import conftest  # noqa: F401  the precision and the compiler settings of the tests
import test_execution as t


def main(how, path, number):
    settings = dict(store=path, number=int(number))
    if how == "loky":
        import loky

        return t.bank(t.NAPPING, executor=loky.get_reusable_executor(2), **settings)
    import distributed

    settings_of_cluster = dict(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with distributed.LocalCluster(**settings_of_cluster) as cluster, distributed.Client(cluster) as client:
        t.bank(t.NAPPING, executor=client, **settings)


if __name__ == "__main__":
    main(*sys.argv[1:])
