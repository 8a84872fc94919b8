"""Driver 2: real cores in virtual time, with messages between them that take time, get lost, and come twice."""
