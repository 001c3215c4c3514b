"""Postal's databases: all SQL about them. Reads here; `changes` has the writing transactions."""
