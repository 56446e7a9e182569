"""What happened in a run, for `kochi trace`: read from disk, and written as trace events."""
