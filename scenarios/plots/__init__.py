"""The plots that gridweave draws."""
