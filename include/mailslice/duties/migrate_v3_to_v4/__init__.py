"""Copies the live rows of enqueuedMailsV3 to enqueuedMailsV4, while V3 is still read; repeated, it adds what came since."""
