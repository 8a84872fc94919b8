"""The simulated world: real cores in virtual time, with messages that take time, get lost or arrive twice."""
