"""From records and captured output to tables and plots."""
