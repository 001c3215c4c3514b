"""Doubles for tests and experiments. The product does not import them."""
