"""Every plot that gridweave draws."""
