"""Postal's tables that a guest uses, as `db/schema.rb` of 3.3.6 and the migrations of its message
databases create them.

Tables of users, domains, endpoints and the like are left out: mailslice has no grants on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Version(StrEnum):
    """Releases of Postal whose tables can be created."""

    V2_3 = "2.3"
    V3_3 = "3.3"


MAIN_OPTIONS = "ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci"
MESSAGE_OPTIONS = "ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_unicode_ci"

RAILS_VERSIONS: Mapping[Version, tuple[str, ...]] = {
    Version.V2_3: ("20161003195209", "20210727210551"),
    Version.V3_3: ("20161003195209", "20210727210551", "20240311205229"),
}
"""Some rows of `schema_migrations`: the first, and the last of each release."""
MESSAGE_VERSION = 20
"""The newest row of `migrations`, in all releases since 2.0."""

_ID = "id int NOT NULL AUTO_INCREMENT"
_WRITTEN = "created_at datetime(6), updated_at datetime(6)"

_QUEUED_MESSAGES = f"""
    {_ID}, server_id int, message_id int, domain varchar(255),
    locked_by varchar(255), locked_at datetime(6), retry_after datetime, {_WRITTEN},
    ip_address_id int, attempts int DEFAULT 0, route_id int, manual tinyint(1) DEFAULT 0,
    batch_key varchar(255),
    PRIMARY KEY (id),
    KEY index_queued_messages_on_domain (domain(8)),
    KEY index_queued_messages_on_message_id (message_id),
    KEY index_queued_messages_on_server_id (server_id)
"""
_SERVERS = f"""
    {_ID}, organization_id int, uuid varchar(255), name varchar(255), mode varchar(255),
    ip_pool_id int, {_WRITTEN}, permalink varchar(255), send_limit int, deleted_at datetime(6),
    message_retention_days int, raw_message_retention_days int, raw_message_retention_size int,
    allow_sender tinyint(1) DEFAULT 0, token varchar(255),
    send_limit_approaching_at datetime(6), send_limit_approaching_notified_at datetime(6),
    send_limit_exceeded_at datetime(6), send_limit_exceeded_notified_at datetime(6),
    spam_threshold decimal(8,2), spam_failure_threshold decimal(8,2),
    postmaster_address varchar(255), suspended_at datetime(6),
    outbound_spam_threshold decimal(8,2), domains_not_to_click_track text,
    suspension_reason varchar(255), log_smtp_data tinyint(1) DEFAULT 0,
    privacy_mode tinyint(1) DEFAULT 0,
    PRIMARY KEY (id),
    KEY index_servers_on_organization_id (organization_id),
    KEY index_servers_on_permalink (permalink(6)),
    KEY index_servers_on_token (token(6)),
    KEY index_servers_on_uuid (uuid(8))
"""
_ORGANIZATIONS = f"""
    {_ID}, uuid varchar(255), name varchar(255), permalink varchar(255), time_zone varchar(255),
    {_WRITTEN}, ip_pool_id int, owner_id int, deleted_at datetime(6), suspended_at datetime(6),
    suspension_reason varchar(255),
    PRIMARY KEY (id),
    KEY index_organizations_on_permalink (permalink(8)),
    KEY index_organizations_on_uuid (uuid(8))
"""
_IP_ADDRESSES = f"""
    {_ID}, ip_pool_id int, ipv4 varchar(255), ipv6 varchar(255), {_WRITTEN},
    hostname varchar(255), priority int,
    PRIMARY KEY (id)
"""
_WEBHOOK_REQUESTS = f"""
    {_ID}, server_id int, webhook_id int, url varchar(255), event varchar(255),
    uuid varchar(255), payload text, attempts int DEFAULT 0, retry_after datetime(6), error text,
    created_at datetime(6), locked_by varchar(255), locked_at datetime,
    PRIMARY KEY (id),
    KEY index_webhook_requests_on_locked_by (locked_by)
"""
_BOTH = {
    "queued_messages": _QUEUED_MESSAGES,
    "servers": _SERVERS,
    "organizations": _ORGANIZATIONS,
    "ip_addresses": _IP_ADDRESSES,
    "schema_migrations": "version varchar(255) NOT NULL, PRIMARY KEY (version)",
    "webhook_requests": _WEBHOOK_REQUESTS,
}
_ONLY_3 = {
    "worker_roles": """
    id bigint NOT NULL AUTO_INCREMENT, role varchar(255), worker varchar(255), acquired_at datetime,
    PRIMARY KEY (id),
    UNIQUE KEY index_worker_roles_on_role (role)
""",
    "scheduled_tasks": """
    id bigint NOT NULL AUTO_INCREMENT, name varchar(255), next_run_after datetime,
    PRIMARY KEY (id),
    UNIQUE KEY index_scheduled_tasks_on_name (name)
""",
}
MAIN_TABLES: Mapping[Version, Mapping[str, str]] = {
    Version.V2_3: _BOTH,
    Version.V3_3: {**_BOTH, **_ONLY_3},
}
"""Columns and indexes of each table of the main database."""

_STATISTICS = f"""
    {_ID}, time int, incoming bigint, outgoing bigint, spam bigint, bounces bigint, held bigint,
    PRIMARY KEY (id),
    UNIQUE KEY on_time (time)
"""
RAW_TABLE = f"{_ID}, data longblob, next int, PRIMARY KEY (id)"
"""Columns of `raw-YYYY-MM-DD`."""

MESSAGE_TABLES: Mapping[str, str] = {
    "migrations": "version int NOT NULL, PRIMARY KEY (version)",
    "messages": f"""
    {_ID}, token varchar(255), scope varchar(10), rcpt_to varchar(255), mail_from varchar(255),
    subject varchar(255), message_id varchar(255), timestamp decimal(18,6), route_id int,
    domain_id int, credential_id int, status varchar(255), held tinyint(1) DEFAULT 0,
    size varchar(255), last_delivery_attempt decimal(18,6), raw_table varchar(255),
    raw_body_id int, raw_headers_id int, inspected tinyint(1) DEFAULT 0,
    spam tinyint(1) DEFAULT 0, spam_score decimal(8,2) DEFAULT 0, threat tinyint(1) DEFAULT 0,
    threat_details varchar(255), bounce tinyint(1) DEFAULT 0, bounce_for_id int DEFAULT 0,
    tag varchar(255), loaded decimal(18,6), clicked decimal(18,6), received_with_ssl tinyint(1),
    hold_expiry decimal(18,6), tracked_links int DEFAULT 0, tracked_images int DEFAULT 0,
    parsed tinyint DEFAULT 0, endpoint_id int, endpoint_type varchar(255),
    PRIMARY KEY (id),
    KEY on_message_id (message_id(8)),
    KEY on_token (token(6)),
    KEY on_bounce_for_id (bounce_for_id),
    KEY on_held (held),
    KEY on_scope_and_status (scope(1), spam, status(6), timestamp),
    KEY on_scope_and_tag (scope(1), spam, tag(8), timestamp),
    KEY on_scope_and_spam (scope(1), spam, timestamp),
    KEY on_scope_and_thr_status (scope(1), threat, status(6), timestamp),
    KEY on_scope_and_threat (scope(1), threat, timestamp),
    KEY on_rcpt_to (rcpt_to(12), timestamp),
    KEY on_mail_from (mail_from(12), timestamp),
    KEY on_raw_table (raw_table(14)),
    KEY on_status (status(8))
""",
    "deliveries": f"""
    {_ID}, message_id int, status varchar(255), code int, output varchar(512),
    details varchar(512), sent_with_ssl tinyint(1) DEFAULT 0, log_id varchar(100),
    timestamp decimal(18,6), time decimal(8,2),
    PRIMARY KEY (id),
    KEY on_message_id (message_id)
""",
    "stats_hourly": _STATISTICS,
    "stats_daily": _STATISTICS,
    "stats_monthly": _STATISTICS,
    "stats_yearly": _STATISTICS,
    "suppressions": f"""
    {_ID}, type varchar(255), address varchar(255), reason varchar(255),
    timestamp decimal(18,6), keep_until decimal(18,6),
    PRIMARY KEY (id),
    KEY on_address (address(6)),
    KEY on_keep_until (keep_until)
""",
    "raw_message_sizes": f"""
    {_ID}, table_name varchar(255), size bigint,
    PRIMARY KEY (id),
    KEY on_table_name (table_name(14))
""",
    "live_stats": """
    type varchar(20) NOT NULL, minute int NOT NULL, count int, timestamp decimal(18,6),
    PRIMARY KEY (minute, type(8))
""",
    "links": f"""
    {_ID}, message_id int, token varchar(255), hash varchar(255), url text,
    timestamp decimal(18,6),
    PRIMARY KEY (id),
    KEY on_message_id (message_id),
    KEY on_token (token(8))
""",
    "clicks": f"""
    {_ID}, message_id int, link_id int, ip_address varchar(255), country varchar(255),
    city varchar(255), user_agent varchar(255), timestamp decimal(18,6),
    PRIMARY KEY (id),
    KEY on_message_id (message_id),
    KEY on_link_id (link_id)
""",
    "loads": f"""
    {_ID}, message_id int, ip_address varchar(255), country varchar(255), city varchar(255),
    user_agent varchar(255), timestamp decimal(18,6),
    PRIMARY KEY (id),
    KEY on_message_id (message_id)
""",
    "spam_checks": f"""
    {_ID}, message_id int, score decimal(8,2), code varchar(255), description varchar(255),
    PRIMARY KEY (id),
    KEY on_message_id (message_id),
    KEY on_code (code(8))
""",
    "webhook_requests": f"""
    {_ID}, uuid varchar(255), event varchar(255), attempt int, timestamp decimal(18,6),
    status_code int, body text, payload text, will_retry tinyint, url varchar(255), webhook_id int,
    PRIMARY KEY (id),
    KEY on_uuid (uuid(8)),
    KEY on_event (event(8)),
    KEY on_timestamp (timestamp),
    KEY on_webhook_id (webhook_id)
""",
}
"""Columns and indexes of each table of one server's message database, in all releases."""


def main_statements(version: Version) -> list[str]:
    """Statements that create the main database's tables in the session's current database."""
    versions = ", ".join(f"('{number}')" for number in RAILS_VERSIONS[version])
    tables = MAIN_TABLES[version].items()
    return [
        *(f"CREATE TABLE `{name}` ({columns}) {MAIN_OPTIONS}" for name, columns in tables),
        f"INSERT INTO schema_migrations (version) VALUES {versions}",
    ]


def message_statements() -> list[str]:
    """Statements that create a server's tables in the session's current database."""
    versions = ", ".join(f"({number})" for number in range(1, MESSAGE_VERSION + 1))
    tables = MESSAGE_TABLES.items()
    return [
        *(f"CREATE TABLE `{name}` ({columns}) {MESSAGE_OPTIONS}" for name, columns in tables),
        f"INSERT INTO migrations (version) VALUES {versions}",
    ]
