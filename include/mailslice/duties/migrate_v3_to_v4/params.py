"""Parameters of a migrate_v3_to_v4 run: only those that every duty has."""

from mailslice.maintenance.params import DutyParams


class Params(DutyParams):
    """Params of migrate_v3_to_v4."""
