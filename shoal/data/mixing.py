"""Mixing: the choice of the rows of a source."""

from dataclasses import replace

from shoal.config.tables.data import SourceConfig
from shoal.data.draw import draw_distinct
from shoal.data.rows import RowSource
from shoal.errors import InvalidArgument
from shoal.quantities import counted


def labeled_rows(rows: RowSource, source: SourceConfig) -> RowSource:
    """Returns the rows whose verifier column has one of `source.labels`, in any case.

    Raises `InvalidArgument` when no row has such a label.
    """
    wanted = {label.lower() for label in source.labels}
    chosen, found = [], set()
    for row in rows.rows:
        named = row.values.get(source.verifier_column)
        names = {str(name).lower() for name in (named if isinstance(named, list) else [named])}
        found |= names
        if names & wanted:
            chosen.append(row)
    if not chosen:
        raise InvalidArgument(
            f"data source {rows.name}: no row has one of the labels {', '.join(source.labels)} in the column "
            f"{source.verifier_column!r}; there are {', '.join(sorted(found)[:_MAX_NAMES])}"
        )
    return replace(rows, rows=chosen)


_MAX_NAMES = 12


def select_rows(source: SourceConfig, name: str, num_rows: int) -> list[int]:
    """Returns the numbers of the rows to use, in file order. After the last row it starts again from the first row.

    Uses `count` rows, or `fraction` of the rows, or all. Whole passes use every row; the remainder is drawn without
    replacement. The draw depends only on the source, so that runs with different seeds train on the same prompts.

    Raises `InvalidArgument` when a fraction selects no row.
    """
    if source.count is not None:
        wanted = source.count
    elif source.fraction is not None:
        wanted = int(source.fraction * num_rows)
        if wanted == 0:
            raise InvalidArgument(
                f"data source {name}: fraction {source.fraction} of {counted(num_rows, 'row')} selects none"
            )
    else:
        wanted = num_rows
    passes, rest = divmod(wanted, num_rows)
    return list(range(num_rows)) * passes + sorted(draw_distinct(f"mixture:{name}", num_rows, rest))
