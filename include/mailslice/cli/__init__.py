"""The command line: one module a group. Commands import drivers and Spark when they run."""
