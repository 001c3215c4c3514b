"""Doubles for tests and for trying things out: the product does not import them."""
