"""A SPARK_HOME whose Python workers start in half the time.

Spark puts `python/lib/pyspark.zip` of its home in front of what workers import, and a zip holds sources only:
each worker compiles PySpark anew, and one that takes more than 10 s to call back, as on a busy machine, is
given up. Without that directory they import the installed package, compiled long ago.
"""

from __future__ import annotations

from pathlib import Path


def installed_home() -> Path:
    """Where pip has put Spark."""
    import pyspark

    return Path(pyspark.__file__).parent


def linked_home(directory: Path) -> Path:
    """A home in `directory`, which must not be there yet: links to the parts of the installed one."""
    directory.mkdir()
    for part in ("jars", "bin", "sbin"):
        (directory / part).symlink_to(installed_home() / part)
    return directory
