"""The planning site whose plan of each instant is a solver's (docs/optimum.md)."""
