"""What drives the cores of a site live: clocks, actors, links, and the desk that answers users."""
