"""Paths of files that are not imported: DAGs, and the jobs that spark-submit runs.

They are in the package's folder, also in a wheel. In a clone, these folders are links to the
top-level `dags/` and `jobs/` (ADR 75).
"""

from pathlib import Path

from mailslice.model.errors import BadInput

_PACKAGE = Path(__file__).resolve().parents[1]


def dags_folder() -> Path:
    """The folder with a file for each DAG. Raises BadInput when it is missing."""
    return _existing(_PACKAGE / "dags").resolve()


def job_file(duty: str) -> Path:
    """The file that spark-submit runs for this duty. Raises BadInput when it is missing."""
    return _existing(_PACKAGE / "jobs" / f"{duty}.py")


def _existing(path: Path) -> Path:
    if not path.exists():
        raise BadInput(
            f"{path} is not there: mailslice was installed without its DAGs and jobs. Install the "
            "wheel, or copy dags/ and jobs/ of the clone beside include/"
        )
    return path
