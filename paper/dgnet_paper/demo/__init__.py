"""Lasers on a steel plate, in three minutes: the classical solver, data, DGNet, a test."""
