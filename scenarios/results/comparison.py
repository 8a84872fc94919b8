"""Several results side by side, as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gridweave.errors import InputError
from gridweave.scenarios.results.files import Writer, folder_name, save_figure, write_all, write_json
from gridweave.scenarios.results.schedule import SimulationResult


def write_comparison(
    results: Sequence[SimulationResult], folder: str | Path, *, plots: bool = True
) -> tuple[Path, ...]:
    """Write several results: each into a folder of its own, named by its label, and what sets them side by side.

    Parameters
    ----------
    results : sequence of SimulationResult
        At least one, with labels of their own.
    folder : str or pathlib.Path
        Where to; it is made if need be.
    plots : bool, optional
        Whether to draw the plots of each result and ``comparison.png``.

    Returns
    -------
    tuple of pathlib.Path
        The files: those of each result, ``comparison.json`` (label, folder, options and metrics of each, in the given
        order) and ``comparison.png``. All are complete before the first gets its name.

    Raises
    ------
    InputError
        If there is no result, if two labels make the same folder, or as for `SimulationResult.write`.
    """
    if not results:
        raise InputError("there is no result to compare; give at least one")
    names = [folder_name(result.label) for result in results]
    for row, name in enumerate(names):
        if name.casefold() in (other.casefold() for other in names[:row]):
            raise InputError(f"two results would be written to the folder {name!r}; give them labels of their own")
    files: dict[str, Writer] = {}
    for name, result in zip(names, results, strict=True):
        files |= {f"{name}/{file}": writer for file, writer in result.files(plots=plots).items()}
    entries = [
        {
            "label": result.label,
            "folder": name,
            "site": result.name,
            "nodes": result.nodes,
            "workload": result.workload.name,
            "options": dict(result.options),
            "metrics": result.metrics().to_dict(),
        }
        for name, result in zip(names, results, strict=True)
    ]
    files["comparison.json"] = lambda path: write_json(path, {"results": entries})
    if plots:
        from gridweave.scenarios.plots.results import plot_comparison

        files["comparison.png"] = lambda path: save_figure(path, plot_comparison(results))
    return write_all(Path(folder), files)
