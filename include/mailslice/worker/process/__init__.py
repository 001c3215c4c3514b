"""Worker processes: supervision, handlers, consumers."""
