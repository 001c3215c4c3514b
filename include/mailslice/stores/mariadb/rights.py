"""What a user may do in a database, as far as MariaDB tells."""

from __future__ import annotations

from mailslice.stores.mariadb.client import MariaDb


def missing_on_database(db: MariaDb, database: str) -> list[str] | None:
    """Rights that the own tables need and the user lacks; None where a role may give them."""
    own = "REPLACE(grantee, '''', '') = CURRENT_USER()"
    held = {
        str(privilege)
        for (privilege,) in db.rows(
            f"SELECT privilege_type FROM information_schema.user_privileges WHERE {own} UNION "
            "SELECT privilege_type FROM information_schema.schema_privileges "
            f"WHERE {own} AND %s LIKE table_schema",
            (database,),
        )
    }
    needed = ("ALTER", "CREATE", "DELETE", "INSERT", "SELECT", "UPDATE")
    missing = [right for right in needed if right not in held]
    if missing and db.rows("SELECT CURRENT_ROLE()") != [(None,)]:
        return None
    return missing
