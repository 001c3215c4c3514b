"""All SQL about Postal's databases. Reads here; `changes` has the writing transactions."""
