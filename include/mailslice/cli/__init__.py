"""The command line: one module a group of commands. Heavy imports (drivers, pydantic, Spark) happen inside the commands."""
