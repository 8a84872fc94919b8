"""The scheduling disciplines of sites, with one entry per discipline."""
