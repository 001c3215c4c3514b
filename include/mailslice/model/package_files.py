"""Files that are loaded by their path and not imported: DAGs and the jobs that spark-submit runs.

They are beside the package's modules, also in a wheel. In a clone these folders are links to the
top-level `dags/` and `jobs/` (ADR 75).
"""

from pathlib import Path

from mailslice.model.errors import BadInput

_PACKAGE = Path(__file__).resolve().parents[1]


def dags_folder() -> Path:
    """The folder with a file for each DAG. Raises BadInput when it is not there."""
    return _existing(_PACKAGE / "dags").resolve()


def job_file(duty: str) -> Path:
    """What spark-submit runs for this duty. Raises BadInput when it is not there."""
    return _existing(_PACKAGE / "jobs" / f"{duty}.py")


def _existing(path: Path) -> Path:
    if not path.exists():
        raise BadInput(
            f"{path} is not there: mailslice was installed without its DAGs and jobs. Install the "
            "wheel, or copy dags/ and jobs/ of the clone beside include/"
        )
    return path
