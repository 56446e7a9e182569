"""Launched runs, which need no terminal: launching, finding, following and stopping them."""
