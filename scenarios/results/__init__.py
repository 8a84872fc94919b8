"""Simulation results: schedules, metrics, tables and files."""
