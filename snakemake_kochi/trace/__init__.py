"""What happened in a run, for `kochi trace`: read from what is on disk, and as trace events."""
