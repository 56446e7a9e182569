"""What everything else stands on: time, shared files."""
