"""Tables of pandas, which is not installed with the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gridweave.errors import UnavailableError

if TYPE_CHECKING:
    import pandas


def data_frame(columns: Mapping[str, Any], *, extra: str = "pandas") -> pandas.DataFrame:
    """Return columns as a table of pandas.

    Parameters
    ----------
    columns : mapping from str to array_like or scalar
    extra : str, optional
        The extra of gridweave that brings pandas to whoever lacks it.

    Returns
    -------
    pandas.DataFrame

    Raises
    ------
    UnavailableError
        If pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise UnavailableError(f"pandas is not installed; run: pip install 'gridweave[{extra}]'") from None
    return pd.DataFrame(columns)
