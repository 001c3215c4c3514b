"""Copies live rows of enqueuedMailsV3 to enqueuedMailsV4; repeated, it adds what came since."""
