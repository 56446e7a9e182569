"""Deleting what nothing needs any more below KOCHI_ROOT."""
