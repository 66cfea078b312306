"""Server options by the names that the code knows them under."""

from collections.abc import Mapping
from typing import Any


def underscored(options: Mapping[Any, Any]) -> dict[str, Any]:
    """The options with underscores in their names, as Python has them: kept points may say `max-num-seqs`."""
    return {str(name).replace("-", "_"): value for name, value in options.items()}
