"""Run scenarios live, and compare the runs with simulations."""
