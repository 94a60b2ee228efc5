"""How much of a source goes into the mixture."""

from shoal.config.data import SourceConfig
from shoal.data.draw import draw_distinct
from shoal.errors import InvalidArgument


def select_rows(source: SourceConfig, name: str, num_rows: int) -> list[int]:
    """Numbers of the rows to use, in file order and, beyond all of them, again from the first.

    As many as `count`, or `fraction` of the rows, or all. Whole passes take every row; what is left over is
    drawn without replacement. The draw depends on the source alone, so that runs with different seeds train on
    the same prompts.

    Raises `InvalidArgument` when a fraction leaves nothing.
    """
    if source.count is not None:
        wanted = source.count
    elif source.fraction is not None:
        wanted = int(source.fraction * num_rows)
        if wanted == 0:
            raise InvalidArgument(f"data source {name}: fraction {source.fraction} of {num_rows} rows is none at all")
    else:
        wanted = num_rows
    passes, rest = divmod(wanted, num_rows)
    return list(range(num_rows)) * passes + sorted(draw_distinct(f"mixture:{name}", num_rows, rest))
