"""Measurements of speed and cost; every table names its command."""
