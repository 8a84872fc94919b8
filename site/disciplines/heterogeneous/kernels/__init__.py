"""The compiled decisions of a heterogeneous site: which job goes to which machine or team, and after what."""
