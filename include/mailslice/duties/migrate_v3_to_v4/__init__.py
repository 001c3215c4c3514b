"""Copies live rows of enqueuedMailsV3 to enqueuedMailsV4. A repeated run copies newer rows."""
