"""The version. setup.py reads it from here without an import; records contain it."""

__version__ = "0.1.0"
