"""Empties what is done from the view of a queue: rows, then deleted marks with a proof; moves browseStart and contentStart forward."""
