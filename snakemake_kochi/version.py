"""The version: read from here by setup.py, without importing, and written into records."""

__version__ = "0.1.0"
