"""The fixtures of tests/services/duties/audited.py."""

from tests.services.duties.audited import at_once, make_spool, one_place, quickly, spool

__all__ = ["at_once", "make_spool", "one_place", "quickly", "spool"]
