"""Benchmarks: each returns plain data for JSON; rivals are timed in the same run."""
