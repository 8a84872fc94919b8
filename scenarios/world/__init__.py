"""The simulated world: the real cores run in virtual time, and messages are delayed, lost or duplicated."""
