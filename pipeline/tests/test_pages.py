"""Examples and tables of the pages about Spark. All examples run in one process, in whose JVM sessions begin and end."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

import clusters
from msgstore.jobs.columns.schemas import DAMAGE, RECORD, SEGMENTS
from msgstore_spark import options

ROOT = Path(__file__).parents[2]
PAGES = [
    "pipeline/README.md",
    "docs/how-to/spark-on-a-laptop.md",
    "docs/how-to/spark-on-a-cluster.md",
    "docs/how-to/spark-and-object-storage.md",
    "docs/how-to/spark-in-production.md",
]
READ = """
    import sys
    from pathlib import Path
    root, top, *pages = sys.argv[1:]
    sys.path.insert(0, root + "/tests")
    from docs.reading import PageReader, blocks
    Path(top, "tests").symlink_to(Path(root, "tests"))
    for page in pages:  # one directory for all: to Spark a relative path is one of the directory in which its JVM began
        reader = PageReader(Path(top))
        for language, text in blocks(Path(root, page)):
            try:
                reader.block(language, text)
            except Exception as error:
                raise AssertionError(f"{page}, where it says:\\n{text}") from error
        print(page)
"""


def test_examples_do_what_the_pages_say(tmp_path):
    said = clusters.run(READ, str(ROOT), str(tmp_path), *PAGES).splitlines()
    assert [line for line in said if line in PAGES] == PAGES


@pytest.mark.parametrize(("relation", "schema"), [("records", RECORD), ("damage", DAMAGE), ("segments", SEGMENTS)])
def test_every_column_is_explained(relation, schema):
    page = (ROOT / "docs/reference/spark.md").read_text(encoding="utf-8")
    section = page.partition(f"Of the relation `{relation}`")[2].partition("Of the relation")[0]
    columns = [f"| `{column.name}` | {column.dataType.simpleString()} | " for column in from_arrow_schema(schema)]
    assert columns
    assert [column for column in columns if column not in section] == []


def test_every_option_is_explained():
    """The page has both tables, generated from the code."""
    assert {*options.OPTIONS, *options.WRITE_OPTIONS} >= options._PARSERS.keys()
