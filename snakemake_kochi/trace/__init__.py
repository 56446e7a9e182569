"""The history of a run for `kochi trace`: read from disk, and written as trace events."""
