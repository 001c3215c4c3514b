"""Worker processes: supervision, handlers, who consumes."""
