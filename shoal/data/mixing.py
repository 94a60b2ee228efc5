"""Mixing: decides which rows of a source are used."""

from shoal.config.data import SourceConfig
from shoal.data.draw import draw_distinct
from shoal.errors import InvalidArgument


def select_rows(source: SourceConfig, name: str, num_rows: int) -> list[int]:
    """Returns the numbers of the rows to use, in file order; after the last row it starts again from the first.

    Uses `count` rows, or `fraction` of the rows, or all. Whole passes use every row; the remainder is drawn without
    replacement. The draw depends only on the source, so that runs with different seeds train on the same prompts.

    Raises `InvalidArgument` when a fraction selects no row.
    """
    if source.count is not None:
        wanted = source.count
    elif source.fraction is not None:
        wanted = int(source.fraction * num_rows)
        if wanted == 0:
            raise InvalidArgument(f"data source {name}: fraction {source.fraction} of {num_rows} rows selects none")
    else:
        wanted = num_rows
    passes, rest = divmod(wanted, num_rows)
    return list(range(num_rows)) * passes + sorted(draw_distinct(f"mixture:{name}", num_rows, rest))
