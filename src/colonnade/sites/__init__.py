"""One organisation on its own machine."""
