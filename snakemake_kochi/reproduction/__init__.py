"""Recorded results are run again from their records, and compared."""
