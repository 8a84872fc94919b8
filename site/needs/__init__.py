"""What jobs need of the nodes that they share, what is known of that, and what sharing did to them."""
