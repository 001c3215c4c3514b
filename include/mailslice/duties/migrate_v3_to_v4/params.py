"""What a run of migrate_v3_to_v4 can be told: nothing but what every duty takes."""

from mailslice.maintenance.params import DutyParams


class Params(DutyParams):
    """Params of migrate_v3_to_v4."""
