"""Rows from Hugging Face data sets."""

from shoal.config.tables.data import SourceConfig
from shoal.data.arrow import MEDIA_ROWS, check_media, media_in, rows_of
from shoal.data.rows import Row, RowSource, digest_of_rows, present_columns
from shoal.errors import InvalidArgument
from shoal.paths import local_path

_BATCH_ROWS = 10_000


def read_dataset(source: SourceConfig) -> RowSource:
    """Reads all rows of one split of a data set: a hub name, a folder of data files, or a folder that
    `Dataset.save_to_disk` wrote.

    Raises `InvalidArgument` when it does not exist, cannot be reached or lacks a column, and when the package
    `datasets` is not installed.
    """
    name = source.dataset
    assert name is not None
    try:
        import datasets
    except ImportError:
        raise InvalidArgument(f"data set {name}: the package datasets is missing: pip install 'shoal[data]'") from None
    folder = local_path(name, "data.sources: dataset")
    try:
        if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
            saved = datasets.load_from_disk(str(folder))
            table = saved[source.split] if isinstance(saved, datasets.DatasetDict) else saved
        else:
            location = str(folder) if folder.is_dir() else name
            table = datasets.load_dataset(location, source.dataset_config, split=source.split)
    # These cover the network, the file system, the package's own errors, and a missing split or configuration.
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InvalidArgument(f"data set {name} (split {source.split}) cannot be loaded: {cause}") from error
    columns = present_columns(source, table.column_names, f"data set {name}")
    label = "/".join(part for part in (name, source.dataset_config, source.split) if part)
    for column in media_in(table.features.arrow_schema, columns):
        parts = table.select_columns([column]).with_format("arrow").iter(batch_size=MEDIA_ROWS)
        check_media(column, (part.column(0) for part in parts), f"{label} row")
    batches = (
        batch
        for part in table.select_columns(columns).with_format("arrow").iter(batch_size=_BATCH_ROWS)
        for batch in part.to_batches()
    )
    rows = [
        Row(number, f"{label} row {number + 1}", values, is_of_table=True)
        for number, values in enumerate(values for batch in batches for values in rows_of(batch))
    ]
    if not rows:
        raise InvalidArgument(f"data set {label} is empty: it needs at least one row")
    return RowSource(label, rows, {label: digest_of_rows(rows)})
